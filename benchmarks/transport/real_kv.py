"""KV of the development model over real text, as a file: what lines carry in earnest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from scripts.model_cache import model_dir
from shared.engine.api import StepPlan, WorkItem

_TOKENS = 2048
_STEP = 512
_BLOCK_TOKENS = 32
_DOCS = Path(__file__).parents[2] / "docs"


def real_kv(dtype: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The file, made where it is missing: blocks of a prefill of this project's documentation, 2,048 tokens
    (bfloat16: 47 MB). Raises ModelUnavailable where the model cannot be had."""
    target = folder / f"kv-{dtype}.bin"
    if target.is_file():
        return target
    import tokenizers

    from shared.engine.runner import TorchRunner

    say(f"prefilling {_TOKENS} tokens for KV in {dtype}")
    directory = model_dir()
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(_DOCS.glob("*.md")))
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = tokenizer.encode(text[: 8 * _TOKENS]).ids[:_TOKENS]
    blocks = tuple(range(_TOKENS // _BLOCK_TOKENS))
    runner = TorchRunner(directory, dtype=dtype, kv_blocks=len(blocks), block_tokens=_BLOCK_TOKENS)
    for start in range(0, len(ids), _STEP):
        runner.execute(StepPlan((WorkItem(1, start, tuple(ids[start : start + _STEP]), blocks, None),)))
    folder.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}")
    half.write_bytes(b"".join(bytes(runner.view(block)) for block in blocks))
    half.replace(target)
    return target
