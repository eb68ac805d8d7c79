"""A worker that dies by its own SIGKILL at an exact moment: a part of a transfer sent, an id of an answer
drawn.

The harness writes what is to happen into a file; here the worker's own events are watched, and the file is
looked at with each. Nothing is changed but when the process dies, and what bytes it sends.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from shared.engine.events import Sampled
from shared.wire.messages import TransferClass
from shared.wire.port import OutChunk
from shared.worker.decoding import Decoding
from shared.worker.kv_out import KvOut
from shared.worker.part import Part
from shared.worker.transfer import Transfer

_LEAST_BLOCKS = 8  # a transfer that has a 10% and a 90%
_LEAST_IDS = 20  # an answer that has a middle


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is armed. `sent`: die once `part` of some transfer is handed to the line, `covered` saying
    whether a relay answers meanwhile. `drawn`: die as some answer's first id is drawn here, the one in its
    middle, or the last but one. `damage`: this `part` of the chunks that leave is damaged. `off`: nothing
    is armed.
    """

    kind: Literal["sent", "drawn", "damage", "off"]
    part: float = 0.0
    covered: bool = False
    moment: Literal["first", "middle", "last"] = "first"


OFF = Wire("off")


def arm(file: Path, wire: Wire) -> None:
    """The harness's side."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(wire))
    fresh.replace(file)


def disarm(file: Path) -> bool:
    """Take back what is armed; False: there is nothing, the worker has taken it and dies.

    Only one of the two can take the file away, so a worker never dies by what was taken back.
    """
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


class Tripwire:
    """The worker's side."""

    def __init__(self, file: Path, die: Callable[[], None]) -> None:
        self._file = file
        self._die = die
        self._draw = random.Random(0)
        self._known = OFF
        self._written = 0

    def install(self) -> None:
        """Watch this process's worker."""
        self._watch_sending()
        self._watch_drawing()

    @property
    def wire(self) -> Wire:
        """What is armed now."""
        try:
            written = self._file.stat().st_mtime_ns
            if written != self._written:
                self._known = msgspec.json.decode(self._file.read_bytes(), type=Wire)
                self._written = written
        except FileNotFoundError:
            return OFF
        return self._known

    def strike(self) -> None:
        """Die, unless that was taken back since it was read."""
        if disarm(self._file):
            self._die()

    def _watch_sending(self) -> None:
        following = KvOut.next_chunk

        def next_chunk(room: KvOut, now: float, node: str, limit: int) -> OutChunk | None:
            chunk = following(room, now, node, limit)
            wire = self.wire
            if chunk is None or wire.kind == "off":
                return chunk
            transfer = room.get(chunk.header.ticket)
            if transfer is not None and cuts_short(wire, transfer):
                self.strike()
            return chunk if wire.kind != "damage" else self._damaged(chunk, wire.part)

        patch(KvOut, "next_chunk", next_chunk)

    def _watch_drawing(self) -> None:
        following = Decoding.on_sampled

        def on_sampled(room: Decoding, part: Part, event: Sampled) -> None:
            if cuts_off(self.wire, part, event.position):
                self.strike()
            following(room, part, event)

        patch(Decoding, "on_sampled", on_sampled)

    def _damaged(self, chunk: OutChunk, part: float) -> OutChunk:
        """The chunk, now and then with a bit turned; its checksum, and the pool's memory, stay."""
        if self._draw.random() >= part:
            return chunk
        data = bytearray(chunk.data)
        data[self._draw.randrange(len(data))] ^= 1
        return OutChunk(chunk.header, memoryview(data), chunk.key)


def cuts_short(wire: Wire, transfer: Transfer) -> bool:
    """Whether this transfer is as far as it may come."""
    if wire.kind != "sent" or len(transfer.wanted) < _LEAST_BLOCKS:
        return False
    if transfer.cls is not (TransferClass.COVERED if wire.covered else TransferClass.UNCOVERED):
        return False
    return transfer.total_bytes - transfer.unsent_bytes >= wire.part * transfer.total_bytes


def cuts_off(wire: Wire, part: Part, position: int) -> bool:
    """Whether the id of this position is the one with which to die."""
    most, start = part.ask.params.max_pos, part.ask.prompt_len
    if wire.kind != "drawn" or most - start < _LEAST_IDS:
        return False
    if wire.moment == "first":
        return part.made == 0
    return position == (most - 2 if wire.moment == "last" else (start + most) // 2)


def kill_self() -> None:
    """As by SIGKILL from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


def patch(owner: type, name: str, value: Any) -> None:
    """Put something else in the place of an attribute, for the rest of the process's life."""
    setattr(owner, name, value)
