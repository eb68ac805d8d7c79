"""Compression where the processors have no time for it, in virtual time: what arrives is never much less than
without. Threads, line and decoders are arithmetic; the gauge is the real one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.policy.compression import CompressionGauge

CHUNK = 256 << 10
THREADS = 2
MB = 1e6


@dataclass(frozen=True)
class Machine:
    """Bytes/s of a line, of one thread at either side, and what it costs others: while chunks are encoded
    sending has this part of the line's rate, though the codec itself looks fast enough."""

    rate: float
    encodes: float
    decodes: float
    gain: float = 1.45
    left: float = 1.0


def arrived(gauge: CompressionGauge, machine: Machine, seconds: float, began: float = 100.0) -> float:
    """Bytes/s, after decoding, of a sender that always has chunks: they are taken early by as many as there
    are threads and one, leave in order, and are read while no more than the threads wait for a decoder."""
    encoders, decoders = [began] * THREADS, [began] * THREADS
    queue: deque[tuple[float, bool, float]] = deque()  # (ready, encoded, seconds of a thread)
    decoding: deque[float] = deque()
    line, size = began, 0
    while line < began + seconds:
        while len(queue) <= THREADS:
            if not gauge.wants(line, machine.rate):
                queue.append((line, False, 0.0))
                continue
            at = min(range(THREADS), key=encoders.__getitem__)
            took = CHUNK / machine.encodes
            encoders[at] = max(encoders[at], line) + took
            queue.append((encoders[at], True, took))
        ready, encoded, took = queue.popleft()
        line = max(line, ready)
        if encoded:
            gauge.encoded(CHUNK, int(CHUNK / machine.gain), took)
            if len(decoding) > THREADS:
                line = max(line, decoding.popleft())
            at = min(range(THREADS), key=decoders.__getitem__)
            decoders[at] = max(decoders[at], line) + CHUNK / machine.decodes
            decoding.append(decoders[at])
            gauge.other_side(THREADS * machine.decodes)
        busy = any(one for _, one, _ in queue) or encoded
        wire = CHUNK / machine.gain if encoded else CHUNK
        line += wire / (machine.rate * (machine.left if busy else 1.0))
        gauge.sent(line, CHUNK, machine.rate)
        size += CHUNK
    return size / (line - began)


def with_it(machine: Machine, seconds: float = 60.0) -> float:
    """What arrives, as a part of what arrives without."""
    return arrived(CompressionGauge("auto", THREADS), machine, seconds) / machine.rate


@pytest.mark.parametrize("rate", [12.5 * MB, 50 * MB])
def test_with_time_for_it_the_gain_arrives(rate: float) -> None:
    assert with_it(Machine(rate, 400 * MB, 900 * MB)) > 1.3


@pytest.mark.parametrize("speed", [5 * MB, 20 * MB, 60 * MB])
def test_a_codec_that_gets_too_little_time_costs_next_to_nothing(speed: float) -> None:
    assert with_it(Machine(50 * MB, speed, speed)) > 0.95


def test_it_is_tried_less_and_less_often_while_there_is_no_time_for_it() -> None:
    slow = Machine(12.5 * MB, 5 * MB, 5 * MB, left=0.3)
    assert with_it(slow, 200.0) > 0.98


def test_a_receiver_that_gets_too_little_time_counts_too() -> None:
    assert with_it(Machine(50 * MB, 400 * MB, 20 * MB)) > 0.95


def test_what_only_the_bytes_that_arrive_can_tell_costs_next_to_nothing() -> None:
    slow = Machine(50 * MB, 120 * MB, 200 * MB, left=0.5)
    assert with_it(slow) > 0.95
    always = arrived(CompressionGauge("on", THREADS), slow, 10.0) / slow.rate
    assert always < 0.8  # so this is a machine on which it does harm


@settings(max_examples=20, deadline=None)
@given(
    rate=st.sampled_from([12.5 * MB, 50 * MB]),
    encodes=st.floats(5 * MB, 800 * MB),
    decodes=st.floats(5 * MB, 800 * MB),
    gain=st.floats(1.0, 1.5),
    left=st.floats(0.3, 1.0),
)
@example(rate=12.5 * MB, encodes=5 * MB, decodes=5 * MB, gain=1.0, left=0.3)
@example(rate=12.5 * MB, encodes=9.375 * MB, decodes=9.375 * MB, gain=1.125, left=0.3125)
def test_it_is_never_much_slower_than_without(
    rate: float, encodes: float, decodes: float, gain: float, left: float
) -> None:
    if THREADS * min(encodes, decodes) >= 6 * rate:
        left = 1.0  # by far fast enough: a machine that hides what it costs others has no such threads
    assert with_it(Machine(rate, encodes, decodes, gain, left), 40.0) > 0.95
