"""A router that is right in what it says and arbitrary in when and which: the workers' worst legal company.

It keeps the log and the terms (I1), and chooses everything else by chance: pipelines, classes, the moments
of Attach, Feed and cut, retries, cancels. `outcomes` says how each request ended; `faults` lists what no
worker may do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.kv.hashing import pack_ids
from shared.wire import messages as m
from shared.wire.port import Instruction, PeerInfo, Send
from tests.support.mesh import hashes_of


@dataclass(eq=False)
class Leg:
    """A decoder's part as the router sees it."""

    node: str
    term: int
    base: int
    admitted: m.Admitted | None = None
    attached: bool = False
    complete: bool = False
    sender: str | None = None
    fed: int = 0


@dataclass(eq=False)
class Wish:
    """One request."""

    rid: m.Rid
    log: list[int]
    prompt_len: int
    sampling: m.Sampling
    pipeline: str
    salt: bytes
    prefill: str | None = None
    prefill_term: int = 1
    main: Leg | None = None
    relay: Leg | None = None
    owner: str | None = None
    term: int = 0  # current owner's
    named: int = 0  # the newest term named
    catching: bool = False
    ended: str | None = None
    finished: m.Finished | None = None
    early: list[m.TokenRow] = field(default_factory=list)
    asked: bool = False  # the Prefill has been sent
    drew: bool = False
    tries: int = 0


class WildRouter:
    """Drives requests over workers `p`, `rld` and `md` (lists of node names by role)."""

    def __init__(
        self,
        rng: random.Random,
        incarnation: int,
        later: Callable[[float, Callable[[], None]], None],
        nodes: dict[m.Role, list[str]],
        *,
        retries: int = 0,
    ) -> None:
        """`later(seconds, act)` runs `act` in a while and then performs the outbox."""
        self._rng = rng
        self._incarnation = incarnation
        self._later = later
        self._nodes = nodes
        self._retries = retries
        self.wishes: dict[m.Rid, Wish] = {}
        self.outcomes: dict[m.Rid, str] = {}
        self.faults: list[str] = []
        self.warmings: dict[m.Rid, str] = {}
        self.warm_ids: dict[m.Rid, list[int]] = {}
        self._live: set[str] = set()
        self._outbox: list[Instruction] = []

    # --- what a test does -----------------------------------------------------------------------------------

    def start(self, ids: list[int], sampling: m.Sampling, pipeline: str, salt: bytes = b"") -> m.Rid:
        """A request begins. `pipeline`: MD, P-MD, P-RLD-MD or P-RLD (singular)."""
        rid = m.Rid(self._incarnation, len(self.wishes) + 1)
        wish = self.wishes[rid] = Wish(rid, list(ids), len(ids), sampling, pipeline, salt)
        self._place(wish)
        return rid

    def end(self, wish: Wish, why: str, *, align: bool = False) -> None:
        """Release everybody."""
        if wish.ended is not None:
            return
        wish.ended = why
        self.outcomes[wish.rid] = why
        term = wish.named + 1
        for leg in (wish.main, wish.relay):
            if leg is not None:
                self._send(leg.node, m.Release(wish.rid, term, align and leg is wish.main))
        if wish.prefill is not None:
            self._send(wish.prefill, m.Release(wish.rid, term, align))

    def alive(self, node: str) -> bool:
        return node in self._live

    # --- placing --------------------------------------------------------------------------------------------

    def _pick(self, role: m.Role) -> str | None:
        nodes = [node for node in self._nodes[role] if node in self._live]
        return self._rng.choice(nodes) if nodes else None

    def _name(self, wish: Wish) -> int:
        wish.named += 1
        return wish.named

    def _place(self, wish: Wish) -> None:
        main, relay, prefill = (self._pick(role) for role in (m.Role.MAIN, m.Role.RELAY, m.Role.PREFILL))
        if main is None or prefill is None or (relay is None and "RLD" in wish.pipeline):
            self.end(wish, "no worker")
            return
        wish.owner, wish.term, wish.catching, wish.drew, wish.asked = (
            None,
            self._name(wish),
            False,
            False,
            False,
        )
        wish.early.clear()
        wish.finished = None
        base = len(wish.log)
        if wish.pipeline != "MD":
            wish.prefill, wish.prefill_term = prefill, self._name(wish)
        if "RLD" in wish.pipeline and relay is not None:
            wish.relay = Leg(relay, self._name(wish), base, fed=base)
        wish.main = Leg(main, self._name(wish), base, fed=base)
        orders: list[Callable[[], None]] = [
            lambda: self._admit(wish, wish.main, parked=wish.pipeline == "P-RLD")
        ]
        if wish.relay is not None:
            orders.append(lambda: self._admit(wish, wish.relay))
        if wish.pipeline != "MD":
            orders.append(lambda: self._prefill(wish))
        self._rng.shuffle(orders)
        for order in orders:
            if self._rng.random() < 0.3:
                self._soon(wish, order)
            else:
                order()

    def _fields(self, wish: Wish) -> dict[str, Any]:
        return {
            "rid": wish.rid,
            "salt": wish.salt,
            "priority": 0,
            "prompt_len": wish.prompt_len,
            "sampling": wish.sampling,
            "remaining_ms": 100_000,
        }

    def _admit(self, wish: Wish, leg: Leg | None, *, parked: bool = False) -> None:
        if leg is None:
            return
        alone = 0
        if wish.pipeline == "MD" and leg.base == len(wish.log):
            alone = self._rng.choice((0, 8, 1000))
        message = m.Admit(term=leg.term, parked=parked, alone=alone, **self._fields(wish))
        leg.admitted, leg.attached, leg.complete, leg.sender = None, False, False, None
        self._send(leg.node, message, pack_ids(wish.log[: leg.base]))

    def _prefill(self, wish: Wish) -> None:
        if wish.prefill is not None:
            base = wish.main.base if wish.main is not None else len(wish.log)
            message = m.Prefill(term=wish.prefill_term, **self._fields(wish))
            self._send(wish.prefill, message, pack_ids(wish.log[:base]))
            wish.asked = True
            if wish.owner is None:
                wish.owner, wish.term = wish.prefill, wish.prefill_term

    def stir(self) -> None:
        """Do something legal and needless to a live request."""
        live = [wish for wish in self.wishes.values() if wish.ended is None and wish.asked]
        if not live:
            return
        wish = self._rng.choice(live)
        main, relay = wish.main, wish.relay
        if self._rng.random() < 0.5 and main is not None and main.admitted and wish.owner != main.node:
            main.term, wish.catching = self._name(wish), False
            self._admit(wish, main, parked=wish.pipeline == "P-RLD")
        elif relay is not None and relay.admitted and not relay.complete and self._rng.random() < 0.5:
            self._attach(wish, relay, self._rng.choice(list(m.TransferClass)))
        elif wish.owner is not None:
            self._send(wish.owner, m.Resume(wish.rid, self._rng.randint(wish.prompt_len, len(wish.log))))

    def warm(self, ids: list[int]) -> None:
        """Re-warm a main decode from a prefill that may still hold the blocks."""
        main, prefill = self._pick(m.Role.MAIN), self._pick(m.Role.PREFILL)
        if main is None or prefill is None:
            return
        rid = m.Rid(self._incarnation, 1000 + len(self.warmings))
        self.warmings[rid] = prefill
        message = m.Admit(
            rid=rid,
            term=1,
            salt=b"",
            priority=0,
            prompt_len=len(ids),
            sampling=m.Sampling(max_pos=0, seed=0),
            remaining_ms=1000,
            purpose=m.Purpose.WARM,
        )
        self._send(main, message, pack_ids(ids))
        self.warm_ids[rid] = ids

    def _on_warm(self, node: str, admitted: m.Admitted) -> None:
        if admitted.ticket:
            message = m.Attach(
                rid=admitted.rid,
                target=node,
                incarnation=admitted.incarnation,
                ticket=admitted.ticket,
                have=admitted.have,
                expected=admitted.expected,
                upto=admitted.upto,
                last_hash=admitted.last_hash,
                cls=m.TransferClass.ALIGNMENT,
            )
            hashes = b"".join(hashes_of(self.warm_ids[admitted.rid]))
            self._send(self.warmings[admitted.rid], message, hashes)

    def _soon(self, wish: Wish, act: Callable[[], None]) -> None:
        def go() -> None:
            if wish.ended is None:
                act()

        self._later(self._rng.random() * 0.1, go)

    # --- legs -----------------------------------------------------------------------------------------------

    def _leg(self, wish: Wish, node: str, term: int | None = None) -> Leg | None:
        for leg in (wish.main, wish.relay):
            if leg is not None and leg.node == node and term in (None, leg.term):
                return leg
        return None

    def _attach(self, wish: Wish, leg: Leg, cls: m.TransferClass | None = None) -> None:
        """Tell somebody who has the blocks where to send: P, or a relay that is complete."""
        admitted = leg.admitted
        if admitted is None or wish.prefill is None or leg not in (wish.main, wish.relay):
            return
        sender, relay = wish.prefill, wish.relay
        if leg is wish.main and relay is not None and relay.complete and self._rng.random() < 0.5:
            sender = relay.node
        if leg.sender is not None and leg.attached:
            sender = leg.sender
        leg.sender = sender
        if not wish.asked:
            self._soon(wish, lambda: self._attach(wish, leg, cls))
            return
        leg.attached = True
        if cls is None:
            covered = (m.TransferClass.UNCOVERED, m.TransferClass.COVERED)
            parked = wish.pipeline == "P-RLD" and leg is wish.main
            cls = m.TransferClass.PARKED if parked else self._rng.choice(covered)
        payload = b""
        if self._rng.random() < 0.3:
            payload = b"".join(hashes_of(wish.log[: leg.base], wish.salt)[: admitted.upto])
        message = m.Attach(
            rid=wish.rid,
            target=leg.node,
            incarnation=admitted.incarnation,
            ticket=admitted.ticket,
            have=admitted.have,
            expected=admitted.expected,
            upto=admitted.upto,
            last_hash=admitted.last_hash,
            cls=cls,
        )
        self._send(sender, message, payload)
        if self._rng.random() < 0.2:
            self._soon(wish, lambda: self._attach(wish, leg, m.TransferClass.COVERED))

    def _own(self, wish: Wish, leg: Leg) -> None:
        """The cut."""
        if wish.owner == leg.node and wish.term > leg.term:
            return
        wish.term, wish.owner = self._name(wish), leg.node
        wish.catching = False
        self._feed(wish, leg, m.Do.OWN, wish.term)
        relay = wish.relay
        if relay is not None and leg is wish.main:
            self._send(relay.node, m.Release(wish.rid, wish.term))
            wish.relay = None

    def _feed(self, wish: Wish, leg: Leg, do: m.Do, term: int) -> None:
        start = max(wish.prompt_len, leg.fed - self._rng.randint(0, 3))
        leg.fed = len(wish.log)
        self._send(leg.node, m.Feed(wish.rid, term, start, do), pack_ids(wish.log[start:]))

    def _consider(self, wish: Wish) -> None:
        """What the log and the legs allow now."""
        main = wish.main
        if wish.ended is not None or main is None or wish.catching:
            return
        if wish.pipeline == "MD":
            if main.admitted is not None and wish.owner != main.node:
                self._own(wish, main)
            return
        if wish.owner == main.node or not wish.drew:
            return
        if main.complete:
            if wish.relay is not None and wish.owner == wish.relay.node and self._rng.random() < 0.5:
                wish.catching = True
                self._feed(wish, main, m.Do.EXTEND, wish.term)
            else:
                self._own(wish, main)
        elif self._rng.random() < 0.2 and len(wish.log) > main.fed and main.admitted is not None:
            self._feed(wish, main, m.Do.HOLD, wish.term)
        relay = wish.relay
        if relay is not None and relay.complete and wish.owner == wish.prefill and self._rng.random() < 0.1:
            self._own(wish, relay)  # by Feed, whether or not it has its First

    # --- ControlCore ----------------------------------------------------------------------------------------

    def on_session(self, now: float, peer: PeerInfo) -> None:
        self._live.add(peer.node)

    def on_resumed(self, now: float, node: str) -> None:
        pass

    def on_suspect(self, now: float, node: str, suspect: bool) -> None:
        pass

    def on_lost(self, now: float, node: str, reason: str) -> None:
        self._live.discard(node)
        for wish in list(self.wishes.values()):
            nodes = {leg.node for leg in (wish.main, wish.relay) if leg is not None} | {wish.prefill}
            if wish.ended is None and node in nodes:
                self._again(wish, f"lost {node}")

    def on_timer(self, now: float) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None

    def take_outbox(self) -> list[Instruction]:
        taken, self._outbox = self._outbox, []
        return taken

    def _send(self, node: str, message: m.Message, payload: bytes = b"") -> None:
        self._outbox.append(Send(node, message, payload))

    def on_message(self, now: float, node: str, message: m.Message, payload: bytes) -> None:
        if getattr(message, "rid", None) in self.warmings:
            if isinstance(message, m.Admitted):
                self._on_warm(node, message)
            return
        match message:
            case m.TokensOut(rows):
                for row in rows:
                    self._on_row(node, row)
            case m.Admitted():
                self._on_admitted(node, message)
            case m.Have():
                self._on_have(node, message)
            case m.CaughtUp():
                self._on_caught_up(node, message)
            case m.Finished():
                self._on_finished(node, message)
            case m.Refused():
                wish = self.wishes[message.rid]
                if wish.ended is None:
                    self.end(wish, f"refused {message.reason}")
            case m.Failed():
                wish = self.wishes[message.rid]
                if wish.ended is None:
                    self._again(wish, f"failed {message.reason} {message.detail}")
            case m.Missing():
                wish = self.wishes[message.rid]
                if wish.ended is None and not (wish.main is not None and wish.owner == wish.main.node):
                    self._again(wish, "missing")

    def _again(self, wish: Wish, why: str) -> None:
        """Place anew, or give up."""
        if wish.tries >= self._retries:
            self.end(wish, why)
            return
        wish.tries += 1
        if self._rng.random() < 0.5:
            self._release_all(wish)
        elif wish.relay is not None:
            self._send(wish.relay.node, m.Release(wish.rid, wish.named + 1))
        wish.named += 1
        wish.relay = None
        self._place(wish)

    def _release_all(self, wish: Wish) -> None:
        nodes = {leg.node for leg in (wish.main, wish.relay) if leg is not None} | {wish.prefill}
        for node in sorted(node for node in nodes if node is not None):
            self._send(node, m.Release(wish.rid, wish.named + 1))

    def _on_admitted(self, node: str, message: m.Admitted) -> None:
        wish = self.wishes[message.rid]
        leg = self._leg(wish, node, message.term)
        if wish.ended is not None or leg is None:
            return
        leg.admitted = message
        if not message.ticket:
            leg.complete = True
        if message.alone:
            wish.term, wish.owner = leg.term, node
        if wish.pipeline != "MD" and (message.ticket or leg is wish.relay):
            if self._rng.random() < 0.5:
                self._attach(wish, leg)
            else:
                self._soon(wish, lambda: self._attach(wish, leg))
        self._consider(wish)

    def _on_have(self, node: str, message: m.Have) -> None:
        wish = self.wishes.get(message.rid)
        if wish is None or wish.ended is not None:
            return
        for leg in (wish.main, wish.relay):
            if (
                leg is None
                or leg.node != node
                or leg.admitted is None
                or leg.admitted.ticket != message.ticket
            ):
                continue
            if message.complete:
                leg.complete = True
        self._consider(wish)

    def _on_caught_up(self, node: str, message: m.CaughtUp) -> None:
        wish = self.wishes[message.rid]
        main = wish.main
        if wish.ended is not None or main is None or not wish.catching or main.node != node:
            return
        if message.upto > len(wish.log):
            self.faults.append(f"{node} caught up to {message.upto} of {len(wish.log)}")
        self._own(wish, main)

    def _on_row(self, node: str, row: m.TokenRow) -> None:
        wish = self.wishes[row.rid]
        relay = wish.relay
        if wish.ended is not None:
            return
        armed = relay is not None and node == relay.node and row.term == relay.term
        if armed and wish.owner == wish.prefill and relay is not None:
            wish.owner, wish.term = node, row.term  # its first run makes it owner
        if row.term < wish.term:
            return
        if node != wish.owner:
            self.faults.append(f"{node} sent ids under term {row.term}, owner is {wish.owner}")
            return
        wish.early.append(row)
        while self._append(wish):
            pass

    def _append(self, wish: Wish) -> bool:
        for row in wish.early:
            if row.start > len(wish.log):
                continue
            wish.early.remove(row)
            overlap = len(wish.log) - row.start
            if wish.log[row.start :][: len(row.ids)] != list(row.ids[:overlap]):
                self.faults.append(f"divergence at {row.start} of {wish.rid}")
            wish.log.extend(row.ids[overlap:])
            wish.drew = True
            self._check_finished(wish)
            self._consider(wish)
            return True
        return False

    def _on_finished(self, node: str, message: m.Finished) -> None:
        wish = self.wishes[message.rid]
        if wish.ended is None and message.term >= wish.term:
            wish.finished = message
            self._check_finished(wish)

    def _check_finished(self, wish: Wish) -> None:
        done = wish.finished
        if done is not None and done.term == wish.term and len(wish.log) == done.at and wish.ended is None:
            before_cut = wish.main is not None and wish.owner != wish.main.node
            self.end(wish, "finished", align=before_cut and wish.pipeline != "P-RLD")
