"""The settings that are in force, for the log: each section whole, once, as a process starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


def told(**sections: msgspec.Struct) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each section's name and its keys: every time-out that is in force is among them."""
    for name, section in sections.items():
        yield name, {key: getattr(section, key) for key in section.__struct_fields__}
