"""TCP resets for flows that cross the line, made from what was seen of them (IPv4).

A receiver takes a reset only with exactly the sequence number that it expects next. That is the
acknowledgement in the last packet that it sent or, where it has not acknowledged yet, the end of the
last packet that it was given: a reset is made for each.
"""

from __future__ import annotations

import struct

_TCP = 6
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10

Flow = tuple[bytes, bytes, bytes]
"""(source, destination, both ports) as they stand in the packet."""


class Flows:
    """Flows of one side, with what it has of each."""

    def __init__(self) -> None:
        self._acked: dict[Flow, bytes] = {}
        self._given: dict[Flow, bytes] = {}

    def saw(self, packet: bytes) -> None:
        """A packet came from this side; others than TCP are let pass."""
        at = _tcp_at(packet)
        if not at:
            return
        flow = (packet[12:16], packet[16:20], packet[at : at + 4])
        flags = packet[at + 13]
        if flags & _RST:
            self._acked.pop(flow, None)
            self._given.pop(flow, None)
        elif flags & _ACK:
            self._acked[flow] = packet[at + 8 : at + 12]

    def gave(self, packet: bytes) -> None:
        """A packet was given to this side."""
        at = _tcp_at(packet)
        if not at:
            return
        flow = (packet[16:20], packet[12:16], packet[at + 2 : at + 4] + packet[at : at + 2])
        if flow in self._acked:
            flags = packet[at + 13]
            size = len(packet) - at - (packet[at + 12] >> 4) * 4 + bool(flags & _SYN) + bool(flags & _FIN)
            end = int.from_bytes(packet[at + 4 : at + 8], "big") + size
            self._given[flow] = (end & 0xFFFFFFFF).to_bytes(4, "big")

    def resets(self) -> list[bytes]:
        """Resets to this side for each of its flows, which are forgotten."""
        made = [
            _reset(flow, seq)
            for flow, acked in self._acked.items()
            for seq in {acked, self._given.get(flow, acked)}
        ]
        self._acked.clear()
        self._given.clear()
        return made


def _tcp_at(packet: bytes) -> int:
    """Where the TCP header of an IPv4 packet begins; 0: there is none."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != _TCP:
        return 0
    at = (packet[0] & 15) * 4
    return at if len(packet) >= at + 20 else 0


def _reset(flow: Flow, seq: bytes) -> bytes:
    here, there, ports = flow
    tcp = ports[2:] + ports[:2] + seq + bytes(4) + bytes((5 << 4, _RST)) + bytes(6)
    check = _checksum(there + here + struct.pack(">HH", _TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack(">H", check) + tcp[18:]
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, _TCP, 0) + there + here
    return head[:10] + struct.pack(">H", _checksum(head)) + head[12:] + tcp


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
