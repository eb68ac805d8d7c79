"""What fake workers keep of requests, and the ids that they draw: a function of all ids before."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.kv.hashing import pack_ids
from shared.wire import messages as m
from shared.wire.messages import Do

BLOCK = 4
VOCAB = 50
FINGERPRINT, LAYOUT = "fake", b"layout"


def next_id(ids: Sequence[int]) -> int:
    """The id that follows: every id before it counts."""
    return zlib.crc32(pack_ids(ids)) % VOCAB


def answer(prompt: Sequence[int], sampling: m.Sampling) -> list[int]:
    """The output that a request has, whoever serves it."""
    ids = list(prompt)
    while len(ids) < sampling.max_pos:
        ids.append(next_id(ids))
        if ids[-1] in sampling.stop_ids:
            break
    return ids[len(prompt) :]


@dataclass(eq=False)
class Part:
    """One request at a decoder."""

    rid: m.Rid
    term: int
    ids: list[int]
    hashes: list[bytes]
    sampling: m.Sampling
    ticket: bytes
    whole: bool
    own_term: int = 0
    alone: bool = False  # it draws from its admission on
    want: Do = Do.HOLD
    extend: int = 0  # term of an extend Feed not yet answered
    first: m.First | None = None
    made: int = 0
    held: list[tuple[m.Feed, list[int]]] = field(default_factory=list)
    over: bool = False


@dataclass(eq=False)
class Prompt:
    """One request at a prefill worker."""

    rid: m.Rid
    term: int
    ids: list[int]
    hashes: list[bytes]
    sampling: m.Sampling
    drew: int | None = None
    relays: dict[bytes, str] = field(default_factory=dict)
