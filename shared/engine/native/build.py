"""Compiles the C++ sources beside this file for this machine's processor, once: the result is kept.

Knows nothing of what is in them. Whoever may write the cache may run code here, so it is the user's own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shared.errors import BuildError

_SOURCES = Path(__file__).parent
_MAIN = "extend.cpp"
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp")
_COMPILERS = ("c++", "g++", "clang++")
_LONGEST = 120.0


def library(environment: Mapping[str, str] = os.environ) -> Path:
    """The shared library, compiled now if it is not there.

    The compiler is `CXX`, else the first of c++, g++, clang++; it is kept under `XDG_CACHE_HOME` or ~/.cache.
    Raises BuildError where there is no compiler or it fails.
    """
    compiler = _compiler(environment)
    command = [*compiler, *_FLAGS, "-shared", "-fPIC"]
    name = f"native-{_digest(command)}.so"
    kept = cache(environment) / name
    try:
        if kept.is_file():
            return kept
        kept.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=kept.parent)) / name
    except OSError:  # a read-only home: compiled again by the next process
        kept = made = Path(tempfile.mkdtemp()) / name
    try:
        _run([*command, "-o", str(made), str(_SOURCES / _MAIN)])
        made.replace(kept)
    finally:
        if made.parent != kept.parent:
            shutil.rmtree(made.parent, ignore_errors=True)
    return kept


def cache(environment: Mapping[str, str]) -> Path:
    """Where compiled libraries are kept."""
    given = environment.get("XDG_CACHE_HOME")
    base = Path(given) if given else Path(environment.get("HOME") or tempfile.gettempdir()) / ".cache"
    return base / "pdd" / "native"


def _compiler(environment: Mapping[str, str]) -> list[str]:
    asked = shlex.split(environment.get("CXX", ""))
    for name in [asked[0]] if asked else _COMPILERS:
        found = shutil.which(name, path=environment.get("PATH"))
        if found:
            return [found, *asked[1:]]
    looked = asked[0] if asked else ", ".join(_COMPILERS)
    raise BuildError(f"no C++ compiler ({looked}) is in PATH; install one, or name it in CXX")


def _digest(command: list[str]) -> str:
    """Of everything that the library depends on: sources, command, compiler, processor."""
    digest = hashlib.sha256("\0".join(command).encode())
    digest.update(_run([command[0], "--version"]))
    digest.update(_processor().encode())
    for path in sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What `-march=native` looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_LONGEST)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{shlex.join(command)}: {error}; set CXX to another compiler") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise BuildError(
            f"{shlex.join(command)} ended with {done.returncode}: {said[0] if said else 'no message'}; "
            "set CXX to another compiler"
        )
    return done.stdout
