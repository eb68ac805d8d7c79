"""A process in which Triton's interpreter stands in for the device; runs named cases, one line in, one JSON
line out.

Its own process because triton reads TRITON_INTERPRET once, when it is imported, and others may have imported
it.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import warnings


def run(name: str) -> dict[str, str]:
    """{"failed": traceback} or {}."""
    module_name, case_name = name.split(".")
    module = importlib.import_module(f"tests.unit.kernels.interpreted.{module_name}")
    try:
        getattr(module, case_name)()
    except Exception:  # noqa: BLE001 - a case may fail in any way; the test shows how
        return {"failed": traceback.format_exc()}
    return {}


def main() -> None:
    warnings.simplefilter("error")
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        json.dump(run(line.strip()), sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
