"""One record for each request and each transfer that ended."""

from __future__ import annotations

from typing import Any

from shared.wire import messages as m
from tests.support.mesh import LAYOUT, Bench, greedy, worker_node

IDS = list(range(50, 93))  # ten full blocks


def test_each_end_is_recorded_once() -> None:
    bench = Bench(worker_node("p", m.Role.PREFILL), worker_node("md", m.Role.MAIN))
    rid = bench.rid()
    bench.admit("md", rid, IDS, greedy(50))
    bench.prefill("p", rid, IDS, greedy(50))
    bench.attach("p", "md", bench.until(m.Admitted))
    bench.until(m.Have)
    bench.run(0.5)
    bench.feed("md", rid, 3, 43, bench.output(rid, 43, "p"), m.Do.OWN)
    bench.until(m.Finished)
    bench.release(rid, 3)
    bench.run(0.1)
    sent, prefill = bench["p"].worker.take_journal()
    received, request = bench["md"].worker.take_journal()
    size = 10 * LAYOUT.block_bytes
    assert fields(sent, "outcome", "target", "blocks", "bytes") == ("kv sent", "complete", "md", 10, size)
    assert fields(received, "outcome", "sender", "blocks", "bytes") == (
        "kv received",
        "complete",
        "p",
        10,
        size,
    )
    assert received[1]["ticket"] == sent[1]["ticket"]
    assert fields(prefill, "outcome", "prompt_tokens") == ("request", "released", 43)
    assert fields(request, "outcome", "made_tokens", "known_tokens") == ("request", "released", 6, 50)
    assert {record["rid"] for _, record in (sent, prefill, received, request)} == {"4d.1"}
    assert 0.5 < request[1]["seconds"] < 2
    assert not bench["md"].worker.take_journal()


def fields(entry: tuple[str, dict[str, Any]], *names: str) -> tuple[Any, ...]:
    return (entry[0], *(entry[1][name] for name in names))
