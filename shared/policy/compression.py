"""Whether chunks to one destination are compressed: the codec's speed against the line's (pure).

Compressing pays while one side's codec turns out bytes faster than the line takes them as they are. All
speeds are measured: this side's encoder, the other side's decoder, the line. Knows no codec and no sockets.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Literal

Mode = Literal["off", "auto", "on"]

_SAMPLES = 8
_PROBES = 4
"""Chunks that are encoded to learn how fast that is."""
_PROBE_EVERY = 5.0
"""Seconds between probes while compressing does not pay."""
_ENTER, _LEAVE = 1.5, 1.2
"""Times as fast as the line that the codec has to be, to begin and to go on."""
_LEAST_GAIN = 1.04
"""Bytes before by bytes after below which it is not worth anybody's time."""


class CompressionGauge:
    """One destination. `parallel`: chunks that are encoded at the same time."""

    def __init__(self, mode: Mode, parallel: int = 1) -> None:
        self._mode = mode
        self._parallel = parallel
        self._encoding: deque[float] = deque(maxlen=_SAMPLES)  # bytes/s of one thread
        self._gain: deque[float] = deque(maxlen=_SAMPLES)
        self._decodes = 0.0
        self._on = mode == "on"
        self._probes = _PROBES
        self._probed = 0.0

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

    def encoded(self, before: int, after: int, seconds: float) -> None:
        """A chunk was encoded in `seconds` of a thread."""
        self._encoding.append(before / max(seconds, 1e-9))
        self._gain.append(before / after)

    def other_side(self, rate: float) -> None:
        """The receiver says how many bytes/s, after decoding, it can decode; 0: it does not know yet."""
        self._decodes = rate

    def wants(self, now: float, rate: float) -> bool:
        """Whether the next chunk should be encoded. `rate` in bytes/s is what the line carries and this
        sender may use; 0: unknown."""
        if self._mode != "auto":
            return self._mode == "on"
        if rate <= 0:
            return False
        speed = self.speed()
        if speed:
            pays = self.gain >= _LEAST_GAIN and speed >= rate * (_LEAVE if self._on else _ENTER)
            self._on = pays
            if pays:
                return True
        if now - self._probed >= _PROBE_EVERY:
            self._probes = _PROBES
        if self._probes:
            self._probes -= 1
            self._probed = now
            return True
        return False
