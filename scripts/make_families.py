"""Writes tests/golden/families.json: transformers' logits for the checkpoints of `mixed_weights`.

Needs transformers, which nothing else does: install it into an environment beside the project's.
"""

import json
import tempfile
from pathlib import Path

import torch
import transformers

from tests.support.mixed_weights import FAMILIES, IDS, write_family

TARGET = Path(__file__).parent.parent / "tests" / "golden" / "families.json"
ROWS = (0, 1, 6, 7, 8, 15, len(IDS) - 1)


def main() -> None:
    """Compute and write."""
    golden: dict[str, object] = {"transformers": transformers.__version__, "ids": IDS, "rows": ROWS}
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as directory:
            write_family(Path(directory), name)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation="eager"
            )
        with torch.inference_mode():
            logits = model(torch.tensor([IDS])).logits[0]
        print(f"{name}: standard deviation {logits.std():.2f}")
        golden[name] = [[round(value, 6) for value in logits[row].tolist()] for row in ROWS]
    TARGET.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
