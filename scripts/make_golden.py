"""Writes tests/golden/smollm2.json: what transformers computes for the development model, in float32.

transformers is no dependency of the project. To make the file anew:

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install -c constraints.txt transformers==5.24.0 \
        torch==2.13.0 safetensors gguf numpy
    /tmp/golden/bin/python -m scripts.make_golden
"""

import json
import sys
from pathlib import Path
from typing import Any

from scripts.model_cache import model_dir

TARGET = Path(__file__).parent.parent / "tests" / "golden" / "smollm2.json"
POSITIONS, TOP, GREEDY = 6, 20, 32
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France, and which river runs through it?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {
            "role": "user",
            "content": "Count: 7, 14, 2026.  Then naïve café 日本語 🙂?\n\n\tdef f(x):\n    return x",
        },
        {"role": "assistant", "content": "I counted them, and the function returns x."},
        {"role": "user", "content": "What's next after 2026? Don't explain."},
    ],
]
TEXT = (
    "A cache keeps the answers of past work near the place where they are needed again. "
    "Its use depends on three things: how often a question comes back, how large an answer is, and how far "
    "away the place is that could compute it anew. "
)


def prompts(tokenizer: Any) -> list[str]:
    """Two chats through the template, and one long plain text."""
    chats = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in CHATS]
    return [*chats, TEXT * 12]


def record(model: Any, tokenizer: Any, text: str) -> dict[str, Any]:
    """Ids, the best logits of the last positions, and the greedy continuation of one prompt."""
    import torch

    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0]
        best = logits[-POSITIONS:].topk(TOP)
        answer = list(ids)
        for _ in range(GREEDY):
            answer.append(int(model(torch.tensor([answer])).logits[0, -1].argmax()))
    return {
        "text": text,
        "ids": ids,
        "top_ids": best.indices.tolist(),
        "top_logits": [[round(value, 5) for value in row] for row in best.values.tolist()],
        "mean": [round(value, 5) for value in logits[-POSITIONS:].mean(-1).tolist()],
        "std": [round(value, 5) for value in logits[-POSITIONS:].std(-1).tolist()],
        "greedy_ids": answer[len(ids) :],
    }


def main() -> int:
    import torch
    import transformers

    directory = model_dir()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    golden = {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "chats": CHATS,
        "prompts": [record(model, tokenizer, text) for text in prompts(tokenizer)],
    }
    TARGET.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
