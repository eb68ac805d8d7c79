"""Clients of a mesh in virtual time, and a watch over what its routers say. Both hold the mesh to I1."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from services.router.requests import Broken, Done, RequestEvent, Tokens
from shared.errors import ApiError, MeshError
from shared.wire import messages as m


@dataclass(eq=False)
class Client:
    """One request as its client sees it. `outcome` is "" until it ends."""

    rid: m.Rid
    ids: list[int]
    sampling: m.Sampling
    salt: bytes
    router: str
    expected: list[int]
    submitted: float
    deadline: float  # seconds after that
    got: list[int] = field(default_factory=list)
    owners: list[m.Role] = field(default_factory=list)  # of each id
    times: list[float] = field(default_factory=list)  # of each id
    done: Done | None = None
    error: MeshError | None = None
    outcome: str = ""
    stopped: int | None = None  # what `stop_at` was given

    @property
    def log(self) -> list[int]:
        return self.ids + self.got

    @property
    def trace(self) -> dict[str, Any]:
        assert self.done is not None, f"{self.rid}: {self.outcome or 'is served'}: {self.error}"
        return dict(self.done.trace)

    @property
    def pipeline(self) -> str:
        return str(self.trace["pipeline"])

    def take(self, now: float, event: RequestEvent) -> None:
        """I1, as the client sees it."""
        assert not self.outcome, f"{event} after {self.outcome}"
        assert now <= self.submitted + self.deadline + 0.1, f"{event} after the deadline"
        match event:
            case Tokens(start, ids, logprobs, owner):
                assert start == len(self.log), f"ids from {start} at {len(self.log)}"
                self.got.extend(ids)
                self.owners += [owner] * len(ids)
                self.times += [now] * len(ids)
                assert self.got == self.expected[: len(self.got)], self.divergence()
                if self.sampling.logprobs >= 0:
                    assert logprobs is not None, f"no logprobs at {start} from {owner}"
                assert logprobs is None or len(logprobs) == len(ids)
            case Done(reason, at):
                self.done, self.outcome = event, "done"
                self._check_end(reason, at)
            case Broken(error):
                self.error, self.outcome = error, "broken"
                assert isinstance(error, ApiError), f"a client was told of {error!r}"

    def divergence(self) -> str:
        at = next(i for i, (a, b) in enumerate(zip(self.got, self.expected, strict=False)) if a != b)
        where = f"{self.rid}: id {len(self.ids) + at} from {self.owners[at]}"
        return f"{where} is {self.got[at]}, not {self.expected[at]}"

    def _check_end(self, reason: m.FinishReason, at: int) -> None:
        if self.stopped is not None:
            assert (reason, at) == (m.FinishReason.STOP, self.stopped)
            return
        assert self.got == self.expected
        assert at == len(self.log)
        stop = self.got[-1] in self.sampling.stop_ids
        assert reason is (m.FinishReason.STOP if stop else m.FinishReason.LENGTH)


class TermWatch:
    """What routers say: terms of a request only grow."""

    def __init__(self) -> None:
        self._named: dict[m.Rid, int] = {}
        self._fed: dict[tuple[m.Rid, str], int] = {}
        self.messages: Counter[str] = Counter()
        self.sent: list[tuple[str, str, m.Message]] = []

    def see(self, source: str, target: str, message: m.Message, payload: bytes) -> None:
        self.messages[type(message).__name__] += 1
        match message:
            case m.Admit(rid=rid, term=term) | m.Prefill(rid=rid, term=term):
                assert term > self._named.get(rid, 0), f"term {term} of {rid} is named twice"
                self._named[rid] = term
            case m.Feed(rid=rid, term=term, do=do):
                assert term >= self._fed.get((rid, target), 0), f"{target} is fed under an older term"
                self._fed[rid, target] = term
                if do is m.Do.OWN:
                    assert term > self._named.get(rid, 0), f"term {term} of {rid} is named twice"
                    self._named[rid] = term
            case m.Release(rid=rid, term=term):
                assert term >= self._named.get(rid, 0)
            case m.Attach():
                pass
            case _:
                return
        self.sent.append((source, target, message))

    def of(self, kind: type[Any], rid: m.Rid) -> list[tuple[str, Any]]:
        """(target, message) of one kind about a request, in order."""
        return [(to, msg) for _, to, msg in self.sent if isinstance(msg, kind) and msg.rid == rid]
