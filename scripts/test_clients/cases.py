"""Which clients are run, and how: packages, and the command as a user would type it. Data only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

URL, MODEL, DIRECTORY = "{url}", "{model}", "{directory}"
"""What a command's words are filled with: the router's address, the served name, the model's directory."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client."""

    name: str
    what: str
    packages: Sequence[str]
    """For its own environment; the first one's version is told."""
    command: Sequence[str]
    """The first word is a program of its environment."""
    fails: str = ""
    """Its output means failure where this is found in it (some clients count errors and exit with 0)."""
    needs: str = ""
    """Its output means failure where this is not found in it."""

    def failed(self, code: int, output: str) -> str:
        """Why a run failed; empty where it did not."""
        if code:
            return f"exit code {code}"
        if self.fails and (found := re.search(self.fails, output)):
            return f"its output says {found[0]!r}"
        if self.needs and not re.search(self.needs, output):
            return f"its output does not say {self.needs!r}"
        return ""


CLIENTS = (
    Client(
        "openai",
        "OpenAI's own package: chat, streams, tools, structured answers, completions, responses, errors",
        ["openai"],
        ["python", "scripts/test_clients/clients/openai_sdk.py", URL, MODEL],
        needs="all done",
    ),
    Client(
        "anthropic",
        "Anthropic's own package, as coding agents use it: messages, streams, tools, errors",
        ["anthropic"],
        ["python", "scripts/test_clients/clients/anthropic_sdk.py", URL, MODEL],
        needs="all done",
    ),
    Client(
        "litellm",
        "the library behind many gateways and agents, through four of its providers",
        ["litellm"],
        ["python", "scripts/test_clients/clients/litellm_sdk.py", URL, MODEL],
        needs="all done",
    ),
    Client(
        "guidellm",
        "vLLM's load generator",
        ["guidellm"],
        [
            "guidellm",
            "run",
            "--backend",
            f"kind=openai_http,target={URL},model={MODEL}",
            "--profile",
            "kind=concurrent,streams=2",
            "--constraint",
            "kind=max_requests,count=8",
            "--tokenizer",
            f"kind=huggingface_auto,model={DIRECTORY}",
            "--data",
            "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
            "--output",
            "kind=console",
            "--disable-progress",
        ],
        fails=r"errored=[1-9]\d*",
        needs=r"successful=[1-9]|Benchmarking complete",
    ),
    Client(
        "aiperf",
        "NVIDIA's load generator (the successor of genai-perf)",
        ["aiperf"],
        [
            "aiperf",
            "profile",
            "--model",
            MODEL,
            "--url",
            URL,
            "--endpoint-type",
            "chat",
            "--streaming",
            "--tokenizer",
            DIRECTORY,
            "--concurrency",
            "2",
            "--request-count",
            "8",
            "--synthetic-input-tokens-mean",
            "64",
            "--output-tokens-mean",
            "16",
            "--extra-inputs",
            "ignore_eos:true",
            "--use-server-token-count",
            "--per-chunk-usage",
            "--artifact-dir",
            "build/clients/aiperf-artifacts",
            "--ui",
            "simple",
        ],
        needs="Time to First Token",
    ),
)
