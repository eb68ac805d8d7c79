"""The index of cached blocks at its full size: memory, look-up, events, and hashing; each beside the plain
way (a dict from hash to the workers that have it; a chain of sha256).

Events go the way they go in a router, from encoded message to the index. Memory is that of a process of its
own.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.command import say
from benchmarks.mesh.options import Options
from benchmarks.report import Result, bounded
from services.router.index import Index
from shared.kv.hashing import HASH_BYTES, chain_hashes, chain_root, pack_ids
from shared.wire import codec
from shared.wire.messages import KvEvents, Snapshot

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Shape:
    """`blocks` over all workers; a prompt of `tokens`; `looks` repetitions of what is short."""

    blocks: int = 1_000_000
    workers: int = 16
    block_tokens: int = 32
    tokens: int = 65_536
    looks: int = 40

    @property
    def names(self) -> list[str]:
        return [f"worker-{at}" for at in range(self.workers)]


class Holder(Protocol):
    """Something that knows which worker holds which block."""

    def start(self, worker: str, most: int) -> None: ...

    def events(self, worker: str, message: KvEvents, payload: bytes) -> None: ...

    def leading(self, workers: Sequence[str], hashes: Sequence[bytes]) -> dict[str, int]: ...


class OurIndex:
    """The router's index."""

    def __init__(self) -> None:
        self._index = Index(most_expected=1 << 20)

    def start(self, worker: str, most: int) -> None:
        self._index.opened(worker)
        self._index.sized(worker, most)
        self._index.on_snapshot(worker, Snapshot(0, 0), b"")

    def events(self, worker: str, message: KvEvents, payload: bytes) -> None:
        self._index.on_events(worker, message, payload)

    def leading(self, workers: Sequence[str], hashes: Sequence[bytes]) -> dict[str, int]:
        return {name: match.have for name, match in self._index.matches(workers, hashes).items()}


class PlainDict:
    """One dict: hash -> names of the workers that have it; a look-up goes block by block."""

    def __init__(self) -> None:
        self._where: dict[bytes, set[str]] = {}

    def start(self, worker: str, most: int) -> None:
        """Nothing to prepare."""

    def events(self, worker: str, message: KvEvents, payload: bytes) -> None:
        for at in range(message.stored + message.removed):
            hash_ = payload[at * HASH_BYTES : (at + 1) * HASH_BYTES]
            if at < message.stored:
                self._where.setdefault(hash_, set()).add(worker)
            elif (held := self._where.get(hash_)) is not None:
                held.discard(worker)
                if not held:
                    del self._where[hash_]

    def leading(self, workers: Sequence[str], hashes: Sequence[bytes]) -> dict[str, int]:
        found = dict.fromkeys(workers, 0)
        alive = set(workers)
        for at, hash_ in enumerate(hashes, 1):
            alive &= self._where.get(hash_, set())
            if not alive:
                break
            for name in alive:
                found[name] = at
        return found


HOLDERS: dict[str, type[OurIndex] | type[PlainDict]] = {"ours": OurIndex, "plain": PlainDict}
Told = tuple[str, bytes, bytes]
"""Worker, header and payload of one message of events."""


def case(options: Options) -> list[Result]:
    """The index at its full size; a sample of it has a tenth."""
    shape = Shape(blocks=100_000) if options.quick else Shape()
    pairs = options.pick(1, 3, 5)
    ours, plain = ([_apart(name, shape, at) for at in range(pairs)] for name in HOLDERS)
    for at, (one, other) in enumerate(zip(ours, plain, strict=True), 1):
        say(
            f"index {at}/{pairs}: {one.megabytes:.0f} MB, {one.rate / 1e3:.0f}k events/s, "
            f"look-up {one.lookup:.3f} ms; a dict: {other.megabytes:.0f} MB, "
            f"{other.rate / 1e3:.0f}k events/s, {other.lookup:.2f} ms"
        )
    facts = {"blocks": shape.blocks, "workers": shape.workers}
    return [
        bounded(
            "index: memory",
            [one.megabytes for one in ours],
            "MB",
            250.0 * shape.blocks / 1e6,
            most=True,
            baselines=[one.megabytes for one in plain],
            **facts,
        ),
        bounded(
            f"index: look-up of {shape.tokens} tokens",
            [one.lookup for one in ours],
            "ms",
            0.5,
            most=True,
            baselines=[one.lookup for one in plain],
            **facts,
        ),
        bounded(
            "index: stored and removed blocks",
            [one.rate for one in ours],
            "1/s",
            300e3,
            most=False,
            baselines=[one.rate for one in plain],
            **facts,
        ),
        _hashing(shape, pairs * shape.looks),
    ]


# --- hashing ------------------------------------------------------------------------------------------------


def _hashing(shape: Shape, pairs: int) -> Result:
    draw = random.Random(1)
    ids = [draw.randrange(128_000) for _ in range(shape.tokens)]
    root = chain_root("model", b"layout", b"")
    ours, plain = [], []
    for _ in range(pairs):
        ours.append(1e3 * _seconds(lambda: chain_hashes(root, ids, shape.block_tokens)))
        plain.append(1e3 * _seconds(lambda: sha_chain(root, ids, shape.block_tokens)))
    say(f"hashing: {statistics.median(ours):.2f} ms, sha256 {statistics.median(plain):.2f} ms")
    name = f"index: hashing {shape.tokens} tokens at block {shape.block_tokens}"
    return bounded(name, ours, "ms", 5.0, most=True, baselines=plain)


def sha_chain(root: bytes, ids: Sequence[int], block_tokens: int) -> list[bytes]:
    """The plain way: sha256 over the parent's hash and the ids of a block."""
    found, parent = [], root
    for at in range(0, len(ids) - block_tokens + 1, block_tokens):
        parent = hashlib.sha256(parent + pack_ids(ids[at : at + block_tokens])).digest()
        found.append(parent)
    return found


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


# --- one holder, in a process of its own --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filled:
    """`rate`: stored and removed blocks a second, in a worker that is full; `lookup`: milliseconds."""

    megabytes: float
    rate: float
    lookup: float


def _apart(name: str, shape: Shape, seed: int) -> Filled:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(fill, (name, shape, seed))


def fill(name: str, shape: Shape, seed: int) -> Filled:
    """Fill a holder, replace a quarter of all blocks, look prompts up."""
    rng = random.Random(seed)
    each = shape.blocks // shape.workers
    chain = chain_hashes(chain_root("m", b"l", b""), range(shape.tokens), shape.block_tokens)
    warm = list(_filling(shape, each, chain, rng))
    gc.collect()
    before = _resident()
    holder = HOLDERS[name]()
    for worker in shape.names:
        holder.start(worker, each)
    _tell(holder, warm)
    gc.collect()
    megabytes = (_resident() - before) / 1e6
    churn = list(_churn(shape, each, rng))
    count = sum(len(payload) for _, _, payload in churn) // HASH_BYTES
    rate = count / _seconds(lambda: _tell(holder, churn))
    looks = [_seconds(lambda: holder.leading(shape.names, chain)) for _ in range(shape.looks)]
    found = holder.leading(shape.names, chain)
    assert found == {worker: _held(shape, at, chain) for at, worker in enumerate(shape.names)}
    return Filled(megabytes, rate, 1e3 * statistics.median(looks))


def _held(shape: Shape, at: int, chain: Sequence[bytes]) -> int:
    """Leading blocks of the prompt at the worker of this number."""
    return len(chain) * (at + 1) // shape.workers


def _filling(shape: Shape, each: int, chain: Sequence[bytes], rng: random.Random) -> Iterator[Told]:
    """Messages that fill all workers: a part of the prompt, and others' blocks."""
    for at, worker in enumerate(shape.names):
        mine = chain[: _held(shape, at, chain)]
        payload = b"".join(mine) + rng.randbytes(HASH_BYTES * (each - len(mine)))
        yield worker, codec.encode(KvEvents(1, each, 0)), payload


def _churn(shape: Shape, each: int, rng: random.Random) -> Iterator[Told]:
    """As in life: a step of a full worker stores some blocks and gives as many old ones up."""
    for worker in shape.names:
        seq, left = 1, each // 4
        old: list[bytes] = []
        while left > 0:
            seq, count = seq + 1, min(left, rng.choice((1, 2, 8, 32, 64)))
            new = [rng.randbytes(HASH_BYTES) for _ in range(count)]
            gone, old = old[:count], old[count:] + new
            payload = b"".join(new) + b"".join(gone)
            yield worker, codec.encode(KvEvents(seq, len(new), len(gone))), payload
            left -= count


def _tell(holder: Holder, told: Sequence[Told]) -> None:
    for worker, header, payload in told:
        message = codec.decode(header)
        assert isinstance(message, KvEvents)
        codec.check_payload(message, len(payload))
        holder.events(worker, message, payload)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
