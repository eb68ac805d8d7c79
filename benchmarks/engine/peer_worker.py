"""Another engine under the same stop-watch, in an interpreter that has it: `peer_worker.py vllm-eager DIR`.

Reads one JSON object a line from stdin, {"do": "prefill", "tokens": 512} and so on, and answers each with
{"seconds": s} on stdout. Imports nothing of this project, which that interpreter does not have.
"""

import argparse
import importlib
import json
import os
import sys
import time
from typing import Any, Protocol


class Peer(Protocol):
    """What every engine here can be asked; seconds of the step that is named."""

    def prefill(self, ids: list[int]) -> float: ...

    def start(self, rows: list[list[int]], room: int) -> None: ...

    def decode(self) -> float: ...


class Transformers:
    """`transformers`, eager, its own cache, one batch."""

    def __init__(self, directory: str, dtype: str, threads: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.torch.set_num_threads(threads)
        kind = getattr(self.torch, dtype)
        auto: Any = importlib.import_module("transformers").AutoModelForCausalLM
        self.model: Any = auto.from_pretrained(directory, dtype=kind).eval()
        self.cache: Any = None
        self.last: Any = None

    def _run(self, ids: Any, cache: Any) -> float:
        began = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            self.last = out.logits[:, -1:].argmax(-1)
        self.cache = out.past_key_values
        return time.perf_counter() - began

    def prefill(self, ids: list[int]) -> float:
        return self._run(self.torch.tensor([ids]), None)

    def start(self, rows: list[list[int]], room: int) -> None:  # noqa: ARG002 - its cache grows
        self._run(self.torch.tensor(rows), None)

    def decode(self) -> float:
        return self._run(self.last, self.cache)


class Vllm:
    """vLLM on the CPU in this process, stepped by hand; prefix caching is off."""

    def __init__(self, directory: str, dtype: str, threads: int, *, eager: bool) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        vllm: Any = importlib.import_module("vllm")
        self.params: Any = vllm.SamplingParams
        self.engine: Any = vllm.LLM(
            directory,
            dtype=dtype,
            max_model_len=4096,
            max_num_batched_tokens=4096,
            enforce_eager=eager,
            enable_prefix_caching=False,
            disable_log_stats=True,
        ).llm_engine
        self.number = 0
        self.live: list[str] = []

    def _add(self, ids: list[int], tokens: int) -> None:
        self.number += 1
        self.live.append(str(self.number))
        params = self.params(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(self.live[-1], {"prompt_token_ids": ids}, params)

    def _clear(self) -> None:
        self.engine.abort_request(self.live)
        self.live = []
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def _step(self) -> tuple[float, int]:
        began = time.perf_counter()
        outputs = self.engine.step()
        return time.perf_counter() - began, sum(len(out.outputs[0].token_ids) for out in outputs)

    def prefill(self, ids: list[int]) -> float:
        self._clear()
        self._add(ids, 1)
        total, drawn = 0.0, 0
        while not drawn:
            seconds, drawn = self._step()
            total += seconds
        return total

    def start(self, rows: list[list[int]], room: int) -> None:
        self._clear()
        for row in rows:
            self._add(row, room)
        drawn = 0
        while drawn < len(rows):
            drawn = self._step()[1]
        self._step()

    def decode(self) -> float:
        return self._step()[0]


def main() -> None:
    """Load, say so, answer until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["transformers", "vllm-eager", "vllm-compiled"])
    parser.add_argument("directory")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer
    peer: Peer
    if options.kind == "transformers":
        peer = Transformers(options.directory, options.dtype, options.threads)
    else:
        eager = options.kind == "vllm-eager"
        peer = Vllm(options.directory, options.dtype, options.threads, eager=eager)
    print(json.dumps({"ready": options.kind}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = 0.0
        if asked["do"] == "prefill":
            seconds = peer.prefill(asked["ids"])
        elif asked["do"] == "start":
            peer.start(asked["rows"], asked["room"])
        else:
            seconds = peer.decode()
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
