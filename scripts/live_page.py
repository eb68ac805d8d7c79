"""Tests the live page in a real browser: `python -m scripts.live_page`, which `make test-ui` runs.

The browser's driver goes into build/ui, apart from what the services and the other tests need. The browser is
this machine's own Chromium.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRIVER = ROOT / "build" / "ui"
PINNED = "playwright==1.65.2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def main() -> int:
    """Make sure that driver and browser are there, then run the tests; their exit code."""
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        advice = "apt-get install --no-install-recommends chromium fonts-dejavu-core"
        print(f"there is no {' or '.join(BROWSERS)} here; {advice}, or name one: CHROMIUM=/path make test-ui")
        return 1
    if not (DRIVER / f"{PINNED.replace('==', '-')}.dist-info").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(DRIVER)]
        subprocess.run([*command, PINNED], check=True)
    paths = [str(ROOT), str(DRIVER), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "CHROMIUM": browser, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    tests = [sys.executable, "-m", "pytest", "-n0", "tests/ui", *sys.argv[1:]]
    return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
