"""Which room takes which message, and who may send it. What concerns several rooms is done here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.wire import messages as m
from shared.worker.rooms import Rooms

Handler = Callable[[float, str, Any, bytes], object]


class Orders:
    """Control messages of one worker."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._site = rooms.site
        prefill = rooms.site.role is m.Role.PREFILL
        self._from_router: dict[type[m.Message], Handler] = {
            m.Admit: self._refuse if prefill else rooms.admitting.on_admit,
            m.Prefill: rooms.prefilling.on_prefill if prefill else self._refuse,
            m.Attach: self._attach,
            m.Release: self._release,
            m.Resume: self._resume,
            m.Drain: lambda _now, _node, message, _payload: self.drain(message.on),
            m.Flush: lambda _now, _node, _message, _payload: self._site.pool.clear_cached(),
            m.SnapshotRequest: self._snapshot,
            m.Peers: lambda _now, node, message, _payload: rooms.meeting.on_peers(node, message),
            m.LineShare: lambda _now, _node, _message, _payload: None,  # the transport's
        }
        self._from_worker: dict[type[m.Message], Handler] = {
            m.Have: lambda now, node, message, _payload: rooms.kv_out.on_have(now, node, message),
            m.Missing: lambda _now, _node, message, _payload: rooms.kv_in.on_missing(message.ticket),
        }
        if not prefill:
            self._from_router[m.Feed] = rooms.decoding.on_feed
        if rooms.site.role is m.Role.RELAY:
            self._from_worker[m.First] = self._first

    def on_message(self, now: float, node: str, message: m.Message, payload: bytes) -> None:
        """Pass a message on. What this role, or this sender, has no business with is counted and ignored."""
        sender = self._site.peers.role(node)
        table = self._from_router if sender is m.Role.ROUTER else self._from_worker
        handler = table.get(type(message)) if sender is not None else None
        if handler is None:
            self._site.count("unexpected_messages_total")
            return
        rid = getattr(message, "rid", None)
        if rid is not None and sender is m.Role.ROUTER and self._peers_own(node, rid):
            self._site.count("unexpected_messages_total")
            return
        handler(now, node, message, payload)

    def _snapshot(self, _now: float, node: str, message: m.SnapshotRequest, _payload: bytes) -> None:
        events = self._rooms.kv_events
        (events.digest if message.digest else events.snapshot)(node)

    def _peers_own(self, node: str, rid: m.Rid) -> bool:
        """Whether a request is another live router's: only that one decides about it."""
        return self._site.peers.owner(rid.incarnation) not in (None, node)

    def _first(self, now: float, node: str, message: m.First, payload: bytes) -> None:  # noqa: ARG002
        self._rooms.decoding.on_first(now, message)

    def _attach(self, now: float, node: str, message: m.Attach, payload: bytes) -> None:
        if message.target == self._site.node:
            self._rooms.kv_in.reclass(message.ticket, message.cls)
            return
        opened = self._rooms.kv_out.on_attach(now, node, message, payload)
        self._rooms.prefilling.on_attach(message, opened=opened)

    def _release(self, now: float, node: str, message: m.Release, payload: bytes) -> None:  # noqa: ARG002
        """The request is over here, up to a term; transfers to main decode may go on as alignments."""
        rooms, rid = self._rooms, message.rid
        if message.term < rooms.sources.term(rid):
            self._site.count("old_term_total")
            return
        prompt_len = rooms.sources.prompt_len(rid)
        for transfer in rooms.kv_out.of(rid):
            if message.align and self._site.peers.role(transfer.target) is m.Role.MAIN:
                upto = prompt_len // self._site.block_tokens if prompt_len else None
                rooms.kv_out.align(now, transfer, upto)
            else:
                rooms.kv_out.close(transfer)
        rooms.prefilling.release(rid)
        rooms.decoding.release(now, rid, align=message.align)

    def _resume(self, now: float, node: str, message: m.Resume, payload: bytes) -> None:  # noqa: ARG002
        self._rooms.prefilling.on_resume(message)
        self._rooms.decoding.on_resume(node, message)

    def _refuse(self, now: float, node: str, message: m.Admit | m.Prefill, payload: bytes) -> None:  # noqa: ARG002
        detail = f"{self._site.node} is a {self._site.role} worker"
        reason = m.RefuseReason.BAD_REQUEST
        self._site.outbox.send(node, m.Refused(message.rid, message.term, reason, 0, detail))

    def backstop(self, rid: m.Rid) -> None:
        """A request has outlived its deadline here: its router has forgotten it."""
        self.give_up(
            rid, m.FailReason.TIMEOUT, f"not released {self._site.policy.backstop:g} s after its deadline"
        )

    def give_up(self, rid: m.Rid, reason: m.FailReason, detail: str) -> None:
        """End a request at whichever room has it, and say so."""
        self._rooms.prefilling.fail(rid, reason, detail)
        part = self._rooms.decoding.get(rid)
        if part is not None:
            self._rooms.decoding.fail(part, reason, detail)

    def drain(self, on: bool) -> None:
        """Take no new work, or take it again. A relay gives up all it has: it is disposable."""
        if on == self._site.draining:
            return
        self._site.draining = on
        self._rooms.meeting.tell()
        if on:
            self._rooms.kv_in.alignments.drop_all()
            if self._site.role is m.Role.RELAY:
                for part in list(self._rooms.decoding.all()):
                    self.give_up(part.rid, m.FailReason.DRAIN, f"{self._site.node} drains")

    def stop(self) -> None:
        """End everything at once, and say so to the routers."""
        self.drain(True)
        detail = f"{self._site.node} stops"
        for rid in self._rooms.prefilling.all():
            self.give_up(rid, m.FailReason.DRAIN, detail)
        for part in list(self._rooms.decoding.all()):
            self.give_up(part.rid, m.FailReason.DRAIN, detail)
        for transfer in list(self._rooms.kv_out.all()):
            self._rooms.kv_out.close(transfer)
