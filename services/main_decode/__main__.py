"""`python -m services.main_decode --config mesh.toml --node NAME`"""

import sys

from services.main_decode.service import make
from shared.runtime.command import service_main

if __name__ == "__main__":
    sys.exit(service_main("main_decode", make))
