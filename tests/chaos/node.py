"""`python -m tests.chaos.node ROLE --tripwire FILE [--without CHECK] --config mesh.toml --node NAME`: the
service of a role as `python -m services.ROLE` runs it, with a tripwire, and without a check where that is
asked for.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import get_args

from shared.runtime.command import service_main
from shared.runtime.settings import RoleName
from tests.chaos.tripwire import Tripwire, kill_self, patch
from tests.support.switched_off import CHECKS


def main() -> int:
    """Run one node."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.node", description=__doc__)
    parser.add_argument("role", choices=get_args(RoleName))
    parser.add_argument("--tripwire", type=Path, required=True, help="where the harness writes what is armed")
    parser.add_argument("--without", choices=sorted(CHECKS), default="", help="a check to switch off")
    options, rest = parser.parse_known_args()
    if options.without:
        CHECKS[options.without](patch)
    if options.role != "router":
        Tripwire(options.tripwire, kill_self).install()
    service = importlib.import_module(f"services.{options.role}.service")
    return service_main(options.role, service.make, rest)


if __name__ == "__main__":
    sys.exit(main())
