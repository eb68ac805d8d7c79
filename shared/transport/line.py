"""One line between two datacenters as this node sends on it: rate, estimate, and whose turn it is.

All connections that cross a line share one token bucket. Within one datacenter, and between two that no
line is named for, nothing is held back. Knows peers only as things that can send one chunk; calls no core.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shared.policy.bursts import EVERY, Burst
from shared.policy.compression import Mode, WireGain
from shared.policy.config import LinePolicy, LinkPolicy
from shared.policy.flight import Patience
from shared.policy.flow import UNLIMITED, LineEstimate, TokenBucket, chunk_size
from shared.policy.line_share import ShareHeld
from shared.transport.tcp import TcpInfo

_TURN_BYTES = 8 << 20
"""Sent in one go at most, then the loop gets its turn."""
_SAVED = 0.02
"""Seconds of the rate that may be sent at once: a loop that comes that much too late still keeps the rate."""
_AGAIN = 0.02
"""Seconds for which a line waits for its rate at most: its share may have grown meanwhile, or ended."""
_LOOK = 0.002
"""Seconds until a sender whose bytes are late is looked at again."""
_MOST_INTERVAL = 0.5
"""Seconds of one sample at most, or four round trips: a longer one had pauses in it."""


@dataclass(frozen=True, slots=True)
class LineSpec:
    """A line as configured. `between` are its two datacenters; rates are bytes per second in each
    direction."""

    name: str
    between: tuple[str, str]
    rate: float = 0.0
    """Cap; 0: none."""
    rtt: float = 0.0
    """Seconds, as a first guess."""
    bulk_connections: int = 0
    """Per pair of workers; 0: the link policy's."""
    congestion: str = ""
    dscp: int = 0
    compress: Mode = "off"
    """Whether chunks are compressed: never, while that is faster, or always."""


@dataclass(frozen=True, slots=True)
class LineView:
    """What may be known of a line from outside."""

    name: str
    rate: float  # bytes/s: the estimate, or the cap where nothing was measured; 0: unknown
    rtt: float  # seconds, smoothed; 0: unknown
    share: float  # bytes/s that this sender may use now; inf: no limit
    backlog: bool  # something waits to be sent
    gain: float = 1.0  # bytes of KV for each byte on the wire, lately


class Sender(Protocol):
    """A destination on the line."""

    def send_one(self, now: float, limit: int) -> int:
        """Write one chunk of at most `limit` bytes where a socket wants it and there is one; bytes
        written. It may wait for others until `push`."""

    def push(self) -> None:
        """Nothing follows for now: hand on what waits."""

    def blocked(self) -> bool:
        """Whether chunks wait for a socket."""

    def held(self) -> bool:
        """Whether a socket would take more, and waits for acknowledgements that are late."""

    def infos(self) -> list[TcpInfo]:
        """The kernel's view of its bulk connections."""

    def keep_unsent(self, size: int) -> None:
        """Bytes that the kernel may hold unsent on each of its bulk connections."""


class Line:
    """The sending half of one line. `spec` None: no limit, no sharing."""

    def __init__(
        self,
        name: str,
        spec: LineSpec | None,
        policy: LinePolicy,
        link: LinkPolicy,
        clock: Callable[[], float],
        after_turn: Callable[[], None],
    ) -> None:
        self.name = name
        self.spec = spec
        self.shares = ShareHeld()
        self._policy = policy
        self._link = link
        self._clock = clock
        self._patience = Patience()
        self._estimate = LineEstimate(policy.estimate_window, spec.rate if spec else 0.0)
        self._gain = WireGain()
        self.carried = self._gain.sent
        """A chunk of so many bytes of KV was written as so many."""
        self._bucket = TokenBucket(depth=_SAVED)
        self._senders: list[Sender] = []
        self._hungry: deque[Sender] = deque()
        self._held: list[Sender] = []  # looked at again soon: no socket tells when bytes are acknowledged
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._rtt = spec.rtt if spec else 0.0
        self._unsent = self.chunk_limit()
        self._sampled = 0.0
        self._delivered = 0
        self._retransmits = 0
        self._busy_since: float | None = None
        self._limited = False  # at the last sample, bytes waited for the line itself
        self._burst: Burst | None = None  # one that no sample has been taken of yet
        self._watching: asyncio.TimerHandle | None = None
        self._after_turn = after_turn  # when chunks were sent outside of the owner's own call

    # --- senders ---

    def join(self, sender: Sender) -> None:
        self._senders.append(sender)

    def leave(self, sender: Sender) -> None:
        self._senders.remove(sender)
        if sender in self._hungry:
            self._hungry.remove(sender)
        if sender in self._held:
            self._held.remove(sender)

    def wake(self, sender: Sender) -> None:
        """This destination may have something to send, or room to send it."""
        if sender not in self._hungry:
            self._hungry.append(sender)

    def close(self) -> None:
        for timer in (self._timer, self._watching):
            if timer is not None:
                timer.cancel()
        self._timer = self._watching = None

    # --- sending ---

    def ready(self, sender: Sender) -> None:
        """A chunk for this destination that was being made is ready."""
        self.wake(sender)
        self.turn(self._clock())
        self._after_turn()

    def turn(self, now: float) -> None:
        """Send chunks in turns between the hungry destinations while the rate allows it."""
        if self.spec is None:
            self._free_turn(now)
            return
        self.sample(now)
        left = _TURN_BYTES
        limit = self.chunk_limit()
        if limit != self._unsent:
            self._unsent = limit
            for sender in self._senders:
                sender.keep_unsent(limit)
        self._bucket.set_rate(now, self._allowed(now))
        for sender in self._held:
            self.wake(sender)
        self._held.clear()
        if self._hungry and self._busy_since is None:
            self._begin_burst(now)
        while self._hungry:
            delay = self._bucket.delay(now)
            if delay > 0 or left <= 0:
                self._later(delay)
                break
            sender = self._hungry.popleft()
            size = sender.send_one(now, limit)
            sender.push()
            if size:
                left -= size
                self._bucket.spend(now, size)
                self._hungry.append(sender)
            elif sender.held():
                self._held.append(sender)
        if self._held:
            self._later(_LOOK)
        self._note_backlog(now)

    def _free_turn(self, now: float) -> None:
        """The same where nothing is held back."""
        self.sample(now)
        left, hungry = _TURN_BYTES, self._hungry
        while hungry:
            if left <= 0:
                self._later(0)
                break
            sender = hungry.popleft()
            size = sender.send_one(now, self._link.max_chunk)
            if size:
                left -= size
                hungry.append(sender)
            else:
                sender.push()
        for sender in hungry:
            sender.push()
        self._note_backlog(now)

    def charge(self, now: float, size: int) -> None:
        """Control bytes use the line too, and wait for nobody."""
        self._bucket.spend(now, size)

    def chunk_limit(self) -> int:
        """Bytes of a chunk at most: about `chunk_ms` of the line."""
        rate = self._estimate.rate if self.spec else 0.0
        return chunk_size(rate, self._policy.chunk_ms, self._link.min_chunk, self._link.max_chunk)

    def view(self, now: float) -> LineView:
        backlog = self._busy_since is not None
        return LineView(
            self.name, self._estimate.rate, self._rtt, self._share(now), backlog, self._gain.value
        )

    @property
    def patience(self) -> float:
        """Seconds after which bytes that a connection was given are late; inf: nobody can say."""
        return self._patience.value

    # --- estimate ---

    def heard_rtt(self, rtt: float) -> None:
        """A round trip of a control connection over this line."""
        self._rtt = rtt if not self._rtt else self._rtt + (rtt - self._rtt) / 8

    def sample(self, now: float) -> None:
        """Measure what was delivered since the last sample, where that is long enough ago."""
        span = now - self._sampled
        if span < self._estimate.interval(self._rtt):
            return
        infos = [info for sender in self._senders for info in sender.infos()]
        total = sum(info.delivered for info in infos)
        retransmits = sum(info.retransmits for info in infos)
        self._note_backlog(now)
        delivered, lost = total - self._delivered, retransmits > self._retransmits
        waits = any(info.unsent for info in infos) or any(sender.blocked() for sender in self._senders)
        limited, self._limited = waits and self._limited, waits
        counted = self._sampled > 0 and span < max(_MOST_INTERVAL, 4 * self._rtt) and delivered > 0
        self._sampled, self._delivered, self._retransmits = now, total, retransmits
        if counted and self._busy_since is not None and self._busy_since <= now - span and infos:
            rtt = sum(info.rtt for info in infos) / len(infos)
            gap = self.chunk_limit() / self._estimate.rate if self._estimate.rate else 0.0
            if self.spec is not None:
                own = (2 + len(infos)) * gap  # a chunk of each may be late, and two are not looked at yet
                least = min(info.least_rtt for info in infos)
                self._patience.sample(min(info.rtt for info in infos), least, own)
            self._estimate.sample(now, delivered / span, rtt=rtt, lost=lost, limited=limited, gap=gap)
            self._burst = None

    def _watch(self) -> None:
        """Measure a burst that may be over before a sample is."""
        self._watching = None
        burst, now = self._burst, self._clock()
        infos = self._infos()
        if burst is None or not infos:
            self._burst = None
            return
        waits = bool(self._hungry) or any(info.unsent for info in infos)
        burst.point(now, *_sums(infos), waits=waits)
        rtt = sum(info.least_rtt for info in infos) / len(infos)
        if not burst.over(now, rtt):
            self._watch_later()
            return
        self._burst = None
        rate, spread = burst.rate()
        if rate:
            lost = sum(info.retransmits for info in infos) > burst.retransmits
            smoothed = sum(info.rtt for info in infos) / len(infos)
            self._estimate.sample(now, rate, rtt=smoothed, lost=lost, limited=spread)

    def _watch_later(self) -> None:
        if self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(EVERY, self._watch)

    def _begin_burst(self, now: float) -> None:
        """Bytes are about to be sent after a pause."""
        if self._burst is None:
            infos = self._infos()
            self._burst = Burst(now, *_sums(infos), sum(info.retransmits for info in infos))
            self._watch_later()

    def _infos(self) -> list[TcpInfo]:
        return [info for sender in self._senders for info in sender.infos()]

    # --- inside ---

    def _share(self, now: float) -> float:
        if self.spec is None or not self.spec.rate:
            return UNLIMITED
        return self.shares.rate(now, self.spec.rate)

    def _allowed(self, now: float) -> float:
        if self.spec is None:
            return UNLIMITED
        return min(self._share(now), self._estimate.pace(now, self._rtt))

    def _note_backlog(self, now: float) -> None:
        """A backlog exists while a destination waits for the bucket or for a socket."""
        if self._hungry or any(sender.blocked() for sender in self._senders):
            if self._busy_since is None:
                self._busy_since = now
        else:
            self._busy_since = None

    def _later(self, delay: float) -> None:
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if delay > 0:
            self._timer = loop.call_later(min(delay, _AGAIN), self._again)
        else:
            self._timer = loop.call_soon(self._again)

    def _again(self) -> None:
        self._timer = None
        self.turn(self._clock())
        self._after_turn()


def _sums(infos: list[TcpInfo]) -> tuple[int, int]:
    """Bytes that have arrived, and that have left, over all connections."""
    return sum(info.delivered for info in infos), sum(info.sent for info in infos)
