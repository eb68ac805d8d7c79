"""Makes .venv with the pinned packages, and the development model.

Runs on the system's Python with the standard library alone, through `make setup` (scripts/setup.sh finds the
Python). Sources, certificates and caches are those of the system's pip configuration. What was installed is
noted in a stamp inside .venv, so that a second run takes a moment. It may be repeated, interrupted (a venv
whose installation broke off is made again) and started twice at once (the second waits).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from scripts.torch_build import SetupFailed, TorchBuild, wanted_build

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
UNFINISHED = VENV / "setup.unfinished"
INPUTS = ("pyproject.toml", "constraints.txt", "scripts/set_up.py", "scripts/torch_build.py")
EXTRAS = "model,demo,dev"
ASK_S = 180.0


def say(text: str) -> None:
    """One line of progress, on standard error."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        with _alone():
            _packages()
            _model()
        if "--say" in sys.argv:
            say("everything is in place")
    except SetupFailed as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; run it again and it goes on")
        return 130
    return 0


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One set-up at a time in this checkout."""
    with (ROOT / "pyproject.toml").open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another one is running; waiting")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _packages() -> None:
    requested = os.environ.get("TORCH", "")
    if requested not in ("", "cpu", "cuda"):
        raise SetupFailed(f"TORCH={requested} is not known; it may be cpu or cuda")
    inputs = _inputs()
    stamp = _read_stamp()
    same_build = requested in ("", stamp.get("torch"))
    if stamp.get("inputs") == inputs and same_build:
        return
    if not _usable() or not same_build:
        _make_venv()
    UNFINISHED.touch()
    STAMP.unlink(missing_ok=True)
    build = wanted_build(requested or stamp.get("torch", ""), _pip, say)
    _install(build)
    STAMP.write_text(json.dumps({"inputs": inputs, "torch": build.kind}) + "\n")
    UNFINISHED.unlink()
    say(f"packages are ready in {VENV.name} ({build.kind} build of torch)")


def _inputs() -> str:
    digest = hashlib.sha256(f"{platform.machine()} {ROOT}".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and PYTHON.exists() and not UNFINISHED.exists() else {}


def _usable() -> bool:
    """Whether .venv has a Python and a pip that run, and no installation in it broke off."""
    if UNFINISHED.exists() or not PYTHON.exists():
        return False
    check = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([PYTHON, "-c", check], capture_output=True, check=False).returncode == 0


def _make_venv() -> None:
    if VENV.exists():
        say(f"{VENV.name} is incomplete or for another build of torch: making it again")
        shutil.rmtree(VENV)
    say(f"making {VENV.name} with Python {platform.python_version()} ({_system_python()})")
    bundled = _has_ensurepip()
    venv.EnvBuilder(with_pip=bundled, symlinks=True).create(VENV)
    UNFINISHED.touch()
    if not bundled:
        _borrow_pip()


def _system_python() -> str:
    """The Python outside any venv: .venv's own, if that runs this, is about to be removed."""
    return str(getattr(sys, "_base_executable", sys.executable))


def _has_ensurepip() -> bool:
    """Debian takes ensurepip out of its Python; its pip and venv come in packages of their own."""
    command = [_system_python(), "-c", "import ensurepip"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _borrow_pip() -> None:
    """Let the system's pip, where there is one, or else a pip that is fetched, install pip into .venv."""
    own = [_system_python(), "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "pip"]
    if subprocess.run(own, capture_output=True, check=False).returncode == 0:
        return
    from scripts.fetch_pip import fetch_pip

    wheel = fetch_pip(VENV)
    command = [str(PYTHON), f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel)]
    if subprocess.run(command, check=False).returncode:
        raise SetupFailed(
            f"{_system_python()} has neither ensurepip nor pip; install them (Debian, Ubuntu: "
            "`apt install python3-venv`) or name another Python: make setup PYTHON=/path/to/python3"
        )


def _pip(*arguments: str, quiet: bool = False) -> bool:
    """Run .venv's pip install under the constraints, wheels only; whether it succeeded. `quiet` is for asking
    what can be had: it shows nothing and gives up after a while."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--constraint", "constraints.txt", *arguments]
    output, limit = (subprocess.DEVNULL, ASK_S) if quiet else (sys.stderr, None)
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _install(build: TorchBuild) -> None:
    say(f"installing torch: {build.reason}")
    if not _pip(*build.arguments):
        raise SetupFailed(
            f"pip could not install {build.arguments[-1]}; see its message above, then run again"
        )
    say("installing the other packages")
    if not _pip("--editable", f".[{EXTRAS}]"):
        raise SetupFailed("pip could not install the packages; see its message above, then run again")


def _model() -> None:
    command = [str(PYTHON), "-m", "scripts.model_cache", "--quick"]
    if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
        raise SetupFailed("the development model could not be made; see above, then run again")


if __name__ == "__main__":
    sys.exit(main())
