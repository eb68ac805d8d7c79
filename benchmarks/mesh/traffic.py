"""Sessions of agents as an open loop: arrivals that do not wait for one another, by a seed.

Each arrival is the next turn of a session that rests, or the first of a new one. A turn's prompt is all that
was said in its session, the answers too, and some new tokens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import VirtualMesh

WARM = 2.0
"""Seconds until a router has heard what is in the caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Lengths in tokens; those that are drawn are log-normal about their median."""

    first: int = 8_000  # of a new session's prompt
    added: int = 600  # of each further turn
    output: int = 150
    spread: float = 0.6  # sigma of the logarithms
    new: float = 0.1  # part of arrivals that begin a session
    longest: int = 60_000  # a session that has got so long ends
    system: int = 0  # tokens that all sessions begin with
    tenants: int = 1
    told: bool = False  # clients say how long their answers get


@dataclass(eq=False)
class Session:
    """What was said."""

    number: int
    tenant: str
    ids: list[int]
    turns: int = 0


@dataclass(eq=False)
class Traffic:
    """Arrivals of one mesh. `rest`: sessions whose last turn has ended."""

    mesh: VirtualMesh
    mix: Mix
    seed: int = 0
    rest: list[Session] = field(default_factory=list)
    arrivals: int = 0
    choose: Callable[[Traffic], Session | None] | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(f"traffic {self.seed}")
        self._system = list(self.random.randbytes(self.mix.system))
        self._turns: dict[Client, tuple[Session, int]] = {}
        self._sessions = 0
        self.mesh.ended = self._ended

    def poisson(self, rate: float, seconds: float, tag: str = "") -> None:
        """Arrivals at `rate` a second from now on, for so long. Does not let time pass."""
        at, end = self.mesh.sim.now, self.mesh.sim.now + seconds
        while (at := at + self.random.expovariate(rate)) < end:
            self.mesh.sim.at(at, lambda: self._arrive(tag))

    def closed(self, clients: int, tag: str = "") -> Callable[[], None]:
        """So many turns at any time, from now until the returned function is called."""
        going = True

        def ended(client: Client) -> None:
            self._ended(client)
            if going:
                pause = 0.0 if client.outcome == "done" else 1.0
                self.mesh.sim.at(self.mesh.sim.now + pause, lambda: self._arrive(tag) if going else None)

        def stop() -> None:
            nonlocal going
            going = False
            self.mesh.ended = self._ended

        self.mesh.ended = ended
        for _ in range(clients):
            self._arrive(tag)
        return stop

    def warm(self, count: int) -> None:
        """Sessions that were served before: main decodes, prefills and relays have them in turn."""
        roles = ("md", "p", "rld")
        workers = [
            [name for name in self.mesh.workers if name.rstrip("0123456789") == role] for role in roles
        ]
        for at in range(count):
            session = self.begin()
            session.turns = 1
            self.mesh.seed(session.ids, *(names[at % len(names)] for names in workers if names))
            self.rest.append(session)
        self.mesh.run(WARM)

    def _arrive(self, tag: str) -> None:
        self.arrivals += 1
        self.turn(self._next(), tag)

    def turn(self, session: Session, tag: str = "", added: int | None = None) -> Client:
        """The next turn of a session."""
        length = len(session.ids)
        if session.turns:
            session.ids += self._text(self._draw(self.mix.added) if added is None else added)
        outputs = self._draw(self.mix.output)
        client = self.mesh.submit(
            session.ids,
            outputs,
            max_tokens=outputs if self.mix.told else 4096,
            tag=tag,
            tenant=session.tenant,
            session=session.number.to_bytes(8, "big"),
        )
        self._turns[client] = (session, length)
        if client.outcome:
            self._ended(client)
        return client

    def _next(self) -> Session:
        if self.choose is not None and (chosen := self.choose(self)) is not None:
            return chosen
        if not self.rest or self.random.random() < self.mix.new:
            return self.begin()
        at = self.random.randrange(len(self.rest))
        self.rest[at], self.rest[-1] = self.rest[-1], self.rest[at]
        return self.rest.pop()

    def begin(self) -> Session:
        """A session that has said nothing yet."""
        self._sessions += 1
        tenant = f"tenant {self._sessions % self.mix.tenants}"
        return Session(self._sessions, tenant, self._system + self._text(self._draw(self.mix.first)))

    def _ended(self, client: Client) -> None:
        session, length = self._turns.pop(client, (None, 0))
        if session is None:
            return
        if client.outcome == "done":
            session.turns += 1
            session.ids += client.got
        else:
            del session.ids[length:]  # said again another time, as if for the first time
        if session.turns and len(session.ids) < self.mix.longest:
            self.rest.append(session)

    def _draw(self, median: int) -> int:
        return max(1, int(median * math.exp(self.random.gauss(0.0, self.mix.spread))))

    def _text(self, tokens: int) -> list[int]:
        return list(self.random.randbytes(tokens))
