"""Memory for KV: zeroed, writable, in huge pages where all of it is used and the system has them."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from shared.kv.memory import anonymous

_KNOWN = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()


def flags(memory: mmap.mmap) -> set[str]:
    """What the system notes of the mapping."""
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    found: set[str] = set()
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        first, _, rest = line.partition("-")
        if rest and len(first) <= 16 and all(digit in "0123456789abcdef" for digit in first):
            inside = int(first, 16) <= place < int(rest.split()[0], 16)
        elif inside and line.startswith("VmFlags:"):
            found |= set(line.split()[1:])
    return found


@pytest.mark.parametrize("whole", [False, True])
def test_it_is_zeroed_and_can_be_written(whole: bool) -> None:
    memory = anonymous(5 << 20, whole=whole)
    assert not any(memory[-4096:])
    memory[5 << 19] = 7
    assert memory[5 << 19] == 7


@pytest.mark.parametrize("whole", [False, True])
def test_huge_pages_are_asked_for_where_all_of_it_is_used(whole: bool) -> None:
    assert ("hg" in flags(anonymous(64 << 20, whole=whole))) == (whole and _KNOWN)
