"""What a grammar costs a decode step over the development model's vocabulary.

`python -m benchmarks.engine.masks`. Each case is one grammar and a text that keeps to it, followed as in a
decoder. Timed are, for each draw, what is allowed, and the greedy draw with it beside one without. Given in
microseconds: medians and the slowest, of the first answer and of later ones, which find the lexer warm.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from scripts.model_cache import model_dir
from services.router.front.structure.calls import Calls, Offer
from services.router.front.structure.form import Form
from services.router.front.structure.grammar import Wanted, grammar_of
from services.router.front.tokens import load_tokenizer
from shared.engine.api import Draw, SamplingParams
from shared.engine.grammar import Grammars, Walk, fault_of, load_grammars
from shared.engine.sampler import draw_batch

WORDS = (
    "It was a bright cold day in April, and the clocks were striking thirteen, as they do in old stories. "
    * 3
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
        "notes": {"type": "array", "items": {"type": "string"}, "maxItems": 9},
        "kind": {"enum": ["reader", "writer", "editor"]},
    },
    "required": ["name", "age", "born", "notes", "kind"],
    "additionalProperties": False,
}
VALUE = {"name": "Ada " * 9, "age": 36, "born": "1815-12-10", "notes": [WORDS, "short"], "kind": "writer"}
TOOLS = [Offer(f"tool_{at}", PERSON, True, "tools") for at in range(20)]
CALL = f'<tool_call>\n{{"name": "tool_7", "arguments": {json.dumps(VALUE)}}}\n</tool_call>'
CASES: Mapping[str, tuple[Wanted, str]] = {
    "json_object": (Wanted(Form("", schema={"type": "object"})), json.dumps({"a": VALUE, "b": [VALUE]})),
    "json_schema": (Wanted(Form("", schema=PERSON)), json.dumps(VALUE)),
    "regex": (Wanted(Form("", regex="([A-Z][a-z ,]+[.] ?)+")), "The clocks were striking thirteen. " * 20),
    "one of 1000": (
        Wanted(Form("", choices=tuple(f"choice number {at}" for at in range(1000)))),
        "choice number 77",
    ),
    "20 tools, required": (Wanted(calls=Calls("hermes", TOOLS, required=True)), CALL),
    "20 strict tools, words": (Wanted(calls=Calls("hermes", TOOLS, required=False)), WORDS + CALL + WORDS),
}
"""By name: what is wanted, and a text that it allows."""


def main() -> None:
    """Run all cases."""
    torch.set_num_threads(1)
    directory = model_dir()
    began = time.perf_counter()
    grammars = load_grammars(directory)
    print(f"vocabulary of {grammars.vocab} made ready in {time.perf_counter() - began:.2f} s")
    encode = load_tokenizer(directory).encode
    logits = torch.randn(1, grammars.vocab, generator=torch.Generator().manual_seed(1))
    print(
        f"{'microseconds':24} {'tokens':>6} {'compile':>8} {'first: median':>14} {'slowest':>8} "
        f"{'later: median':>14} {'slowest':>8} {'draw':>6} {'plain':>6}"
    )
    for name, (wanted, text) in CASES.items():
        report(name, grammars, wanted, encode(text), logits)


def report(name: str, grammars: Grammars, wanted: Wanted, ids: list[int], logits: torch.Tensor) -> None:
    """Time one case and print it."""
    text = grammar_of(wanted, lambda _mark: None, fault_of)
    began = time.perf_counter()
    grammars.compiled(text)
    compiled = (time.perf_counter() - began) * 1e6
    first, mask = followed(grammars, text, ids)
    later = [took for _ in range(4) for took in followed(grammars, text, ids)[0]]
    params = SamplingParams(max_pos=1 << 20, seed=0, temperature=0.0, stop_ids=(2,), grammar=text)
    bound = Draw((), len(ids), 0, params, tuple(ids), mask)
    free = Draw((), len(ids), 0, SamplingParams(max_pos=1 << 20, seed=0, temperature=0.0))
    draw, plain = (timed(lambda one=one: draw_batch(logits, [one])) for one in (bound, free))  # type: ignore[misc]
    print(
        f"{name:24} {len(ids):6} {compiled:8.0f} {statistics.median(first):14.1f} {max(first):8.0f} "
        f"{statistics.median(later):14.1f} {max(later):8.0f} {draw:6.0f} {plain:6.0f}"
    )
    print(
        json.dumps(
            {"bench": "masks", "case": name, "value": round(statistics.mean(later), 1), "unit": "us/token"}
        )
    )


def followed(grammars: Grammars, text: str, ids: list[int]) -> tuple[list[float], bytes]:
    """Microseconds of each step along the ids, and the last mask."""
    walk = Walk(grammars, text)
    took: list[float] = []
    mask = b""
    for at, token in enumerate(ids):
        written = tuple(ids[:at])
        began = time.perf_counter()
        mask = walk.allowed(written, (2,))
        took.append((time.perf_counter() - began) * 1e6)
        if not mask[token >> 3] >> (token & 7) & 1:
            raise SystemExit(f"id {token} at {at} is not allowed")
    return took, mask


def timed(act: Callable[[], object]) -> float:
    """Median microseconds."""
    took = []
    for _ in range(100):
        began = time.perf_counter()
        act()
        took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took)


if __name__ == "__main__":
    main()
