"""Anonymous memory for KV, in pages as large as its use asks for."""

from __future__ import annotations

import mmap
from contextlib import suppress


def anonymous(size: int, *, whole: bool = False) -> mmap.mmap:
    """`size` bytes of zeroed memory of this process alone, committed page by page when it is written.

    `whole`: all of it will be in use, block beside block. Then it is asked for in huge pages, where the
    system has them: what copies and sums it walks fewer page tables. Raises OSError, OverflowError or
    ValueError where the system refuses.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
