"""Large memory in huge pages, where the system has them."""

from __future__ import annotations

import mmap
from pathlib import Path

from shared.engine.huge_pages import advise


def test_large_anonymous_memory_is_advised_and_unchanged() -> None:
    memory = mmap.mmap(-1, 16 << 20)
    private = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for each in (memory, private):
        each[:] = bytes(range(256)) * (len(each) // 256)
    advised = advise()
    known = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
    assert (advised > 0) == known
    assert memory[:] == private[:] == bytes(range(256)) * (len(memory) // 256)
