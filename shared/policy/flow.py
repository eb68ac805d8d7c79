"""How fast to send on a line: a token bucket, an estimate of the line's rate, back-off between dials
(pure).

Time comes in as seconds of any one monotonic clock, rates are bytes per second. Knows no sockets.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from itertools import islice, pairwise

UNLIMITED = math.inf


class TokenBucket:
    """Lets through `rate` bytes per second on average and `depth` seconds' worth at once. Spending may go
    into debt, so a chunk of any size passes once the bucket is not empty."""

    def __init__(self, rate: float = UNLIMITED, depth: float = 0.005) -> None:
        self.rate = rate
        self._depth = depth
        self._tokens = 0.0
        self._at: float | None = None

    def delay(self, now: float) -> float:
        """Seconds until something may be sent; 0: now."""
        if self.rate == UNLIMITED:
            return 0.0
        self._fill(now)
        if self._tokens > -1:  # less than a byte is rounding
            return 0.0
        return -self._tokens / self.rate if self.rate > 0 else UNLIMITED

    def spend(self, now: float, size: int) -> None:
        """`size` bytes were sent."""
        if self.rate != UNLIMITED:
            self._fill(now)
            self._tokens -= size

    def set_rate(self, now: float, rate: float) -> None:
        """From now on another rate; what was saved up is kept within the new depth."""
        if self.rate != UNLIMITED:
            self._fill(now)
        else:
            self._at, self._tokens = now, 0.0
        self.rate = rate

    def _fill(self, now: float) -> None:
        if self._at is not None:
            self._tokens += (now - self._at) * self.rate
        self._at = now
        self._tokens = min(self._tokens, self.rate * self._depth)


class LineEstimate:
    """The rate of a line from what it delivered while a backlog existed.

    The estimate is the best sample of the last `window` seconds with samples: an idle or half-used line
    says nothing about its rate. A lower sample alone is not believed (the sender may have been slow); with
    a risen round trip or loss it is, and older samples are cut to it. Nor does a low sample count that
    this side's own pace explains: a line that is never tried says nothing, or each estimate would only
    confirm the one before it and fall with every pause, or with every round trip that rises by itself.

    Two of sixteen round trips are sent at 1.25 times the estimate, to find a line that has become faster,
    and on as long as that finds more, then at 1.56 times; much more is a new start-up. While a queue stands
    on the line all are sent at 0.85, until it is gone: a full line needs no probe. A round trip that jumps
    from sample to sample is no queue. Until samples stop growing (start-up) nothing is held back.
    """

    PROBE, EASE = 1.25, 0.85
    _TURNS, _PROBING = 16, 2
    _SLACK, _FAR_APART = 0.002, 0.012  # seconds
    _PATIENCE = 16
    _LEAST_TURN = 0.05  # seconds: shorter ones say more of this machine than of the line
    _FALL = 0.85  # of the estimate: lower samples are a fall, if anything else says so
    _GROWTH = 1.25
    _RISE = 1.1
    _STEADY = 3  # samples without growth that end the start-up

    def __init__(self, window: float, guess: float = 0.0) -> None:
        self._window = window
        self._samples: deque[tuple[float, float]] = deque()  # (when, rate)
        self._trips: deque[tuple[float, float]] = deque()  # (when, round trip)
        self._rate = self._guess = guess
        self._full = 0.0
        self._steady = 0
        self._low = 0
        self._queueing = False
        self._queued = 0  # samples in a row with a queue
        self._rises = 0  # samples in a row that found more
        self._least = UNLIMITED  # the lowest pace since the last sample

    @property
    def rate(self) -> float:
        """Bytes per second; 0 where nothing is known."""
        return self._rate

    @property
    def started(self) -> bool:
        """Whether enough samples agree to pace by the estimate."""
        return self._steady >= self._STEADY

    def sample(
        self, now: float, rate: float, *, rtt: float, lost: bool, limited: bool = True, gap: float = 0.0
    ) -> None:
        """`rate` was delivered over an interval in which a backlog existed all the time. `limited`: it was
        the line that bytes waited for, not this side's pace. `gap`: seconds between two chunks."""
        self._look_for_queue(now, rtt, gap)
        rises = rate > self._RISE * self._rate and not self._queueing
        self._rises = self._rises + 1 if rises else 0
        held, self._least = min(self._rate, self._least), UNLIMITED
        if not limited and rate <= self._rate:
            if self.started:
                _keep(self._samples, now, self._rate, self._window)
            return
        fallen = self.started and rate < self._FALL * held and (self._queueing or lost)
        self._low = self._low + 1 if fallen else 0
        if self._low >= 2:
            self._low = 0
            self._samples = deque((when, min(one, rate)) for when, one in self._samples)
        _keep(self._samples, now, rate, self._window)
        best = max(one for _, one in self._samples)
        self._rate = best if self.started else max(best, self._guess)
        if rate > self._full * self._GROWTH:
            self._full, self._steady = rate, 0
        elif not self.started and limited:
            self._steady += 1

    def _look_for_queue(self, now: float, rtt: float, gap: float) -> None:
        """A round trip above the least is a queue, but for what a receiver waits with its acknowledgement
        where chunks come far apart, and for what round trips differ by anyway. A queue that stays though this
        side eases off is not its own: the line has changed, and only what it carried since counts."""
        _keep(self._trips, now, rtt, self._window)
        slack = self._SLACK + (gap if gap > self._FAR_APART else 0.0) + 2 * self._jitter()
        self._queueing = rtt > 1.25 * min(trip for _, trip in self._trips) + slack
        self._queued = self._queued + 1 if self._queueing else 0
        if self._queued > self._PATIENCE:
            self._trips.clear()
            while len(self._samples) > self._PATIENCE:
                self._samples.popleft()
            self._queueing, self._queued = False, 0

    def _jitter(self) -> float:
        """Seconds by which a round trip mostly differs from the one before it: a queue comes and goes in
        steps, and stands between them."""
        trips = [trip for _, trip in islice(reversed(self._trips), self._PATIENCE)]
        return statistics.median(abs(one - other) for one, other in pairwise(trips)) if trips[1:] else 0.0

    def interval(self, rtt: float) -> float:
        """Seconds that a sample should span: as long as a probe, as acknowledgements come in clumps."""
        return self._PROBING * max(rtt, self._LEAST_TURN)

    def pace(self, now: float, rtt: float) -> float:
        """The rate to send at now."""
        if not self.started:
            return UNLIMITED
        pace = self._rate * (self.EASE if self._queueing else self._boldness(now, rtt))
        self._least = min(self._least, pace)
        return pace

    def _boldness(self, now: float, rtt: float) -> float:
        turn = int(now / max(rtt, self._LEAST_TURN)) % self._TURNS
        probes = self._rises > 0 or turn < self._PROBING
        return self.PROBE ** (min(2, 1 + self._rises)) if probes else 1.0


def _keep(history: deque[tuple[float, float]], now: float, value: float, window: float) -> None:
    """Add a value and let go of those that are older than the window."""
    history.append((now, value))
    while history[0][0] < now - window:
        history.popleft()


class Backoff:
    """Seconds between attempts: `first`, doubled up to `most`, each by a random part shorter so that peers
    which lost each other at the same time do not meet again and again."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._next = first

    def next(self, random: float) -> float:
        """The pause before the next attempt; `random` is in [0, 1)."""
        pause = self._next * (0.5 + random / 2)
        self._next = min(self._most, self._next * 2)
        return pause

    def reset(self) -> None:
        self._next = self._first


def chunk_size(rate: float, chunk_ms: float, least: int, most: int) -> int:
    """Bytes of one chunk: about `chunk_ms` of the line, within limits, in whole 4 KiB; `most` where the
    rate is unknown."""
    if rate <= 0 or rate == UNLIMITED:
        return most
    wanted = int(rate * chunk_ms / 1000) & ~4095
    return max(least, min(most, wanted))
