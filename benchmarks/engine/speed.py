"""Cases `decode` and `prefill`: tokens per second beside other engines, in interleaved pairs."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping

from benchmarks.command import say
from benchmarks.engine.bounds import Bounds, measure
from benchmarks.engine.options import Options
from benchmarks.engine.peers import PeerSubject
from benchmarks.engine.subjects import CONTEXT, EngineSubject, PlainSubject, Subject
from benchmarks.report import Result, paired
from shared.engine.model_config import read_config

STEPS = 6  # decode steps of one measurement: their median
DECODE_MUST: dict[str, dict[int, float]] = {
    "transformers": {1: 1.3, 4: 1.3, 16: 1.3},
    "vllm-eager": {1: 1.15, 4: 1.15, 16: 1.15},
    "vllm-compiled": {1: 1.05, 4: 1.05, 16: 0.95},
}
PREFILL_MUST = {"transformers": 1.3, "vllm-eager": 1.15, "vllm-compiled": 1.15}


class Field:
    """The engine and all it is measured beside, loaded once; `close` ends other processes."""

    def __init__(self, options: Options) -> None:
        of_model = (options.directory, options.dtype, options.threads)
        self.ours = EngineSubject(*of_model, library=options.library)
        self.others: dict[str, Subject] = {"plain": PlainSubject(*of_model)}
        if options.library is not None:
            self.others["own forward in torch"] = EngineSubject(*of_model)
        self._peers: list[PeerSubject] = []
        options.out.mkdir(parents=True, exist_ok=True)
        for kind, python in options.peers:
            say(f"starting {kind}")
            log = options.out / f"{kind}.log"
            peer = PeerSubject(kind, python, options.directory, options.dtype, options.threads, log)
            self.others[kind] = peer
            self._peers.append(peer)
        self.bounds: Bounds = measure(read_config(options.directory), options.dtype, options.threads)

    def close(self) -> None:
        """End other processes."""
        for peer in self._peers:
            peer.close()


def decode(field: Field, options: Options) -> list[Result]:
    """Batches of 1, 4 and 16 at context 512."""
    found = []
    for batch in (1, 4, 16):
        for subject in (field.ours, *field.others.values()):
            subject.start(batch, CONTEXT)
            subject.extend(1)
        rates = _interleaved(field, options.pairs, functools.partial(_decoding_rate, batch))
        musts = {kind: by_batch[batch] for kind, by_batch in DECODE_MUST.items()}
        bounds = field.bounds
        read = bounds.weight_bytes + batch * bounds.kv_bytes(CONTEXT)
        more = {
            "products_ms": round(1e3 * bounds.products(batch, batch), 2),
            "bytes_ms": round(1e3 * read / bounds.bandwidth, 2),
        }
        found += _results(f"decode/{batch}", rates, musts, more)
        say(f"decode {batch}: {_shown(rates)}; bounds {more}")
    return found


def prefill(field: Field, options: Options) -> list[Result]:
    """Prompts of 512 and 2,048 tokens from nothing."""
    found = []
    for tokens in (512,) if options.quick else (512, 2048):
        for subject in (field.ours, *field.others.values()):
            subject.prefill(64)
        rates = _interleaved(field, options.pairs, functools.partial(_prefill_rate, tokens))
        more = {"products_ms": round(1e3 * field.bounds.products(tokens, 1), 1)}
        found += _results(f"prefill/{tokens}", rates, PREFILL_MUST, more)
        say(f"prefill {tokens}: {_shown(rates)}; bounds {more}")
    return found


def _decoding_rate(batch: int, subject: Subject) -> float:
    return batch / statistics.median(subject.extend(1) for _ in range(STEPS))


def _prefill_rate(tokens: int, subject: Subject) -> float:
    return tokens / subject.prefill(tokens)


def _interleaved(field: Field, pairs: int, rate: Callable[[Subject], float]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"engine": [], **{name: [] for name in field.others}}
    for _ in range(pairs):
        rates["engine"].append(rate(field.ours))
        for name, subject in field.others.items():
            rates[name].append(rate(subject))
    return rates


def _results(
    case: str, rates: Mapping[str, list[float]], musts: Mapping[str, float], more: Mapping[str, float]
) -> list[Result]:
    return [
        paired(f"{case} vs {name}", rates["engine"], values, "tok/s", musts.get(name), **more)
        for name, values in rates.items()
        if name != "engine"
    ]


def _shown(rates: Mapping[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(values):.1f}" for name, values in rates.items())
