"""Whether chunks to one destination are compressed: what is gained is measured, not assumed (pure).

Two questions. Could it pay: are both sides' codecs faster than the line? All three are measured: this side's
encoder, the other side's decoder, the line. And does it: where the codecs are not faster by far, what arrives
with compression is compared with what arrives without, each over a stretch in which there was always
something to send. A machine whose processors are busy with other things fails the second question only.
Threads and sockets stall now and then for a tenth of a second: what has just paid goes on, whatever single
chunks take, and ends where less has arrived twice in a row. Knows no codec and no sockets.
"""

from __future__ import annotations

import enum
import statistics
from collections import deque
from typing import Literal

Mode = Literal["off", "auto", "on"]

_SAMPLES = 64
"""Chunks by which the codec's speed and gain are known: a tenth of a second at 1 Gbit/s."""
_PROBES = 4
"""Chunks that are encoded to learn how fast that is."""
_PROBE_EVERY = 5.0
"""Seconds until they are encoded again while compressing could not pay, doubled each time: chunks leave in
order, so that those of a codec without time hold up all others."""
_PROBE_MOST = 80.0
_ENTER, _LEAVE = 1.5, 1.2
"""Times as fast as the line that the codec has to be, to begin and to go on."""
_BY_FAR = 6.0
"""Times as fast as the line that the codec is where nothing is compared."""
_LEAST_GAIN = 1.04
"""Bytes before by bytes after below which it is not worth anybody's time."""
_BETTER = 1.02
"""What has to arrive with compression, times what arrives without."""
_LOSSES = 2
"""Comparisons in a row after which compression that has paid ends; what has not yet ends after one."""
_TRUST = 1.0
"""Seconds for which a comparison that was won counts more than what the codec's speed lets expect."""
_SETTLE, _WINDOW = 0.2, 0.4
"""Seconds after a change that do not count, and seconds that are measured then."""
_AGAIN = 20.0
"""Seconds until the two are compared again; while compression loses, doubled each time."""
_AGAIN_MOST = 320.0
_LATELY = 16 << 20
"""Bytes on the wire after which what was sent before them counts half, in a line's gain."""


class _State(enum.Enum):
    ON = "on"
    OFF = "off"  # it could not pay, or did not
    TRIAL = "trial"  # off, to learn what arrives without


class CompressionGauge:
    """One destination. `parallel`: chunks that are encoded at the same time."""

    def __init__(self, mode: Mode, parallel: int = 1) -> None:
        self._mode = mode
        self._parallel = parallel
        self._encoding: deque[float] = deque(maxlen=_SAMPLES)  # bytes/s of one thread
        self._gain: deque[float] = deque(maxlen=_SAMPLES)
        self._decodes = 0.0
        self._state = _State.OFF
        self._probes = 0
        self._stale = False  # what is known of the encoder is from before the last probes
        self._probe_at = 0.0
        self._probe_wait = _PROBE_EVERY
        self._stretch = _Stretch()
        self._without: tuple[float, float] | None = None  # (when, bytes/s that arrived)
        self._with = 0.0
        self._losses = 0
        self._trusted = 0.0  # on until then, since it pays
        self._hold = 0.0  # off until then, where it did not pay
        self._again = _AGAIN

    @property
    def gain(self) -> float:
        """Bytes before by bytes after, lately; 1 where nothing was encoded yet."""
        return statistics.median(self._gain) if self._gain else 1.0

    def speed(self) -> float:
        """Bytes/s, before encoding, that both sides keep up with; 0: not measured yet."""
        if len(self._encoding) < _PROBES:
            return 0.0
        own = statistics.median(self._encoding) * self._parallel
        return min(own, self._decodes) if self._decodes else own

    # --- what is measured ---

    def encoded(self, before: int, after: int, seconds: float) -> None:
        """A chunk was encoded in `seconds` of a thread."""
        if self._stale:
            self._encoding.clear()
            self._stale = False
        self._encoding.append(before / max(seconds, 1e-9))
        self._gain.append(before / after)

    def other_side(self, rate: float) -> None:
        """The receiver says how many bytes/s, after decoding, it can decode; 0: it does not know yet."""
        self._decodes = rate

    def sent(self, now: float, size: int, rate: float) -> None:
        """A chunk of `size` bytes, before encoding, went into the socket. `rate` as in `wants`."""
        arrived = self._stretch.sent(now, size)
        if arrived is None or self._mode != "auto":
            return
        if self._state is _State.ON:
            self._with = arrived
            if self.speed() >= _BY_FAR * rate:
                return
            if self._without is None or now - self._without[0] > self._again:
                self._change(_State.TRIAL)
                return
        else:
            self._without = (now, arrived)
            if self._state is _State.OFF:
                return
        self._judge(now, self._without[1])

    def idle(self) -> None:
        """There was nothing to send: what comes next says nothing about the line for a while."""
        self._stretch.restart()

    # --- what follows ---

    def wants(self, now: float, rate: float) -> bool:
        """Whether the next chunk should be encoded. `rate` in bytes/s is what the line carries and this
        sender may use; 0: unknown."""
        if self._mode != "auto":
            return self._mode == "on"
        if rate <= 0:
            return False
        if self._could_pay(rate):
            self._probe_wait = _PROBE_EVERY
            if self._state is _State.OFF and now >= self._hold:
                self._change(_State.ON)
            return self._state is _State.ON
        if now < self._trusted:
            return self._state is _State.ON
        if self._state is not _State.OFF:
            self._change(_State.OFF)
        if now >= self._probe_at:
            self._probes = _PROBES
            self._stale = True
            self._probe_at = now + self._probe_wait
            self._probe_wait = min(2 * self._probe_wait, _PROBE_MOST)
        if self._probes:
            self._probes -= 1
            return True
        return False

    def _could_pay(self, rate: float) -> bool:
        times = _ENTER if self._state is _State.OFF else _LEAVE
        return self.speed() >= times * rate and self.gain >= _LEAST_GAIN

    def _judge(self, now: float, without: float) -> None:
        """Both are known: go on with the better one."""
        won = self._with >= _BETTER * without
        self._losses = 0 if won else self._losses + 1
        if won:
            self._again = _AGAIN
            self._trusted = now + _TRUST
        if self._losses < (_LOSSES if self._trusted else 1):
            if self._state is not _State.ON:
                self._change(_State.ON)
            return
        self._hold = now + self._again
        self._again = min(2 * self._again, _AGAIN_MOST)
        self._change(_State.OFF)

    def _change(self, state: _State) -> None:
        if state is _State.OFF:
            self._losses, self._trusted = 0, 0.0
        self._state = state
        self._stretch.restart()


class WireGain:
    """What compression makes of a line: bytes before by bytes after, over what it has carried lately, chunks
    that were sent as they are included. So it says what the line is worth, not what the codec can do."""

    def __init__(self) -> None:
        self._before = self._after = 0.0

    @property
    def value(self) -> float:
        """At least 1, which it is where nothing was sent yet."""
        return max(1.0, self._before / self._after) if self._after else 1.0

    def sent(self, before: int, after: int) -> None:
        """A chunk of `before` bytes has left as `after`."""
        self._before += before
        self._after += after
        if self._after >= _LATELY:
            self._before /= 2
            self._after /= 2


class _Stretch:
    """Bytes per second while there is always something to send, stretch after stretch."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._bytes = 0

    def restart(self) -> None:
        self._since = None

    def sent(self, now: float, size: int) -> float | None:
        """The rate of a stretch, at its end."""
        if self._since is None:
            self._since, self._bytes = now + _SETTLE, 0
        if now <= self._since:
            return None
        self._bytes += size
        if now - self._since < _WINDOW:
            return None
        rate = self._bytes / (now - self._since)
        self._since, self._bytes = now, 0
        return rate
