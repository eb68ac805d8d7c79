"""What a worker wants done, in order. Rows of ids are gathered so that each router gets one TokensOut an
event.

It knows nothing of requests: only of nodes and messages.
"""

from __future__ import annotations

from shared.wire.messages import Message, Role, TokenRow, TokensOut
from shared.wire.port import Dial, Instruction, Send, Undial, WakeBulk


class Outbox:
    """Instructions since the last `take`."""

    def __init__(self) -> None:
        self._sends: list[Instruction] = []
        self._rows: dict[str, list[TokenRow]] = {}
        self._wakes: dict[str, None] = {}

    def send(self, node: str, message: Message, payload: bytes = b"") -> None:
        """A control message to a node."""
        self._sends.append(Send(node, message, payload))

    def row(self, node: str, row: TokenRow) -> None:
        """Ids for a router: they leave before anything else of this event, in one message a router."""
        self._rows.setdefault(node, []).append(row)

    def dial(self, node: str, role: Role, datacenter: str, address: str) -> None:
        """Keep a session to a node."""
        self._sends.append(Dial(node, role, datacenter, address))

    def undial(self, node: str) -> None:
        """Keep that session no longer."""
        self._sends.append(Undial(node))

    def wake(self, node: str) -> None:
        """There may be KV bytes for a node."""
        self._wakes[node] = None

    def take(self) -> list[Instruction]:
        """All instructions, rows first and wakes last, and forget them."""
        if not (self._sends or self._wakes or self._rows):
            return []
        taken: list[Instruction] = [
            Send(node, TokensOut(tuple(rows))) for node, rows in self._rows.items() if rows
        ]
        taken += self._sends
        taken += [WakeBulk(node) for node in self._wakes]
        self._rows.clear()
        self._sends = []
        self._wakes.clear()
        return taken
