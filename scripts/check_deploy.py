"""`make check-deploy`: holds the units in deploy/systemd to systemd's own judgement.

Every unit is verified as on a machine where deploy/install.md was followed, and every service's exposure,
with and without its GPU drop-in, is at most 3.0 by `systemd-analyze security`. Starts nothing and needs no
root.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNITS = ROOT / "deploy" / "systemd"
BASE = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
PYTHON = "opt/pdd-mesh/current/bin/python"
"""What the units start, made for the check as a file that can be executed."""
MOST_EXPOSED = 3.0
INSTANCE = "node-0"


def main() -> int:
    """Check all; 0 where nothing is wrong."""
    if shutil.which("systemd-analyze") is None:
        print(
            "check-deploy: systemd-analyze is not here; install systemd (Debian, Ubuntu: apt install systemd)"
        )
        return 1
    failures = [failure for directory in sorted(UNITS.glob("datacenter-*")) for failure in check(directory)]
    for failure in failures:
        print(f"check-deploy: {failure}")
    return 1 if failures else 0


def check(directory: Path) -> Iterator[str]:
    """What is wrong with one datacenter's units."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        installed = machine(root, directory)
        units = [f"/etc/systemd/system/{_instance(unit.name)}" for unit in sorted(directory.iterdir())]
        code, said = analyze("verify", f"--root={root}", "--man=no", *units)
        if code or said:
            yield f"{directory.name}: systemd-analyze verify:\n{said}"
        for service in sorted(directory.glob("*.service")):
            yield from exposed(root, service.name, directory.name)
            if "CacheDirectory" in service.read_text() and "router" not in service.name:
                drop_in = installed / f"{service.name}.d"
                drop_in.mkdir()
                shutil.copy(UNITS / "gpu.conf", drop_in)
                yield from exposed(root, service.name, f"{directory.name} with gpu.conf")


def machine(root: Path, directory: Path) -> Path:
    """A file tree as it is after the installation; the directory of its units."""
    base = next((path for path in BASE if path.is_dir()), None)
    if base is None:
        raise SystemExit(f"check-deploy: systemd's own units are in neither {BASE[0]} nor {BASE[1]}")
    shutil.copytree(base, root / "usr/lib/systemd/system", symlinks=True)
    python = root / PYTHON
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    return Path(shutil.copytree(directory, root / "etc/systemd/system"))


def exposed(root: Path, name: str, where: str) -> Iterator[str]:
    """Whether a service's exposure is above the bound; prints it."""
    unit = f"/etc/systemd/system/{_instance(name)}"
    _, said = analyze("security", "--offline=true", f"--root={root}", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    if found is None:
        yield f"{where}: {name}: systemd-analyze security:\n{said}"
        return
    level = float(found[1])
    print(f"check-deploy: {where}: {name}: exposure {level} of at most {MOST_EXPOSED}")
    if level > MOST_EXPOSED:
        yield f"{where}: {name}: exposure {level} is above {MOST_EXPOSED}"


def analyze(*arguments: str) -> tuple[int, str]:
    """Run systemd-analyze; its exit code and all it said."""
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def _instance(name: str) -> str:
    return name.replace("@.", f"@{INSTANCE}.")


if __name__ == "__main__":
    sys.exit(main())
