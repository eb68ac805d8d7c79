"""`python -m services.relay --config mesh.toml --node NAME`"""

import sys

from services.relay.service import make
from shared.runtime.command import service_main

if __name__ == "__main__":
    sys.exit(service_main("relay", make))
