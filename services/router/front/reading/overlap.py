"""Marks over a text that comes in pieces: how much of its end may still become one. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def overlap(text: str, marks: Iterable[str]) -> int:
    """Characters at the text's end that begin a mark without completing it; the most of all marks."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
