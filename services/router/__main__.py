"""`python -m services.router --config mesh.toml --node NAME`; with `--status`, how a running one is doing."""

import sys

from services.router.service import make
from services.router.status.command import status_main
from shared.runtime.command import service_main

if __name__ == "__main__":
    if "--status" in sys.argv[1:]:
        sys.exit(status_main(sys.argv[1:]))
    more = "--status: show how the running router is doing, and serve nothing"
    sys.exit(service_main("router", make, more=more))
