"""Which bytes a ratio is of."""

from __future__ import annotations

import pytest

from benchmarks.transport.compress import of_all, of_compressed
from benchmarks.transport.loopback import Run


def sent(before: float, after: float, out: float) -> Run:
    return Run(
        (), facts={"encoded_bytes_before": before, "encoded_bytes_after": after, "chunk_bytes_out": out}
    )


def test_ratios_are_of_all_bytes_or_of_those_that_were_compressed() -> None:
    half = sent(300, 200, 500)  # 300 more went as they are
    assert of_compressed(half) == pytest.approx(1.5)
    assert of_all(half) == pytest.approx(600 / 500)


def test_nothing_compressed_is_no_gain() -> None:
    none = sent(0, 0, 500)
    assert of_compressed(none) == of_all(none) == 1
