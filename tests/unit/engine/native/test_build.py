"""The library is compiled once for a machine; what stands in the way is named."""

import os
from pathlib import Path

import pytest

from shared.engine.native import build
from shared.engine.native.library import Library
from shared.errors import BuildError
from tests.support.compiled import compiled


def compiler(directory: Path, body: str) -> Path:
    """A compiler that is a shell script."""
    path = directory / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def counting(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """An environment whose compiler writes a line a call, and where to."""
    calls = tmp_path / "calls"
    body = (
        f'echo call >> {calls}\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done\nexit 0'
    )
    return environment(tmp_path, CXX=str(compiler(tmp_path, body))), calls


def test_it_is_compiled_once(tmp_path: Path) -> None:
    given, calls = counting(tmp_path)
    first = build.library(given)
    made = calls.read_text()
    assert first.read_text() == "made\n"
    assert first.parent == build.cache(given)
    assert first.parent.stat().st_mode & 0o077 == 0
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert build.library(given) == first
    assert calls.read_text() == made + "call\n"  # of its version alone


def test_another_compiler_compiles_again(tmp_path: Path) -> None:
    given, _ = counting(tmp_path)
    first = build.library(given)
    assert build.library(given | {"CXX": given["CXX"] + " -g"}) != first


def test_without_a_place_to_keep_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    given, _ = counting(tmp_path)
    (tmp_path / "file").write_text("")
    found = build.library(given | {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert found.read_text() == "made\n"


def test_no_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\) is in PATH"):
        build.library(environment(tmp_path, PATH=str(tmp_path)))
    with pytest.raises(BuildError, match=r"\(/nowhere/c\+\+\)"):
        build.library(environment(tmp_path, CXX="/nowhere/c++ -O1"))


def test_a_compiler_that_fails_says_why(tmp_path: Path) -> None:
    script = compiler(tmp_path, 'case "$*" in *version*) exit 0;; esac\necho "bad flag" >&2\nexit 3')
    given = environment(tmp_path, CXX=str(script))
    with pytest.raises(BuildError, match=r"ended with 3: bad flag; set CXX"):
        build.library(given)
    assert list(build.cache(given).iterdir()) == []


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "native.so").write_text("made\n")
    with pytest.raises(OSError, match=r"native\.so"):
        Library(tmp_path / "native.so")


def test_a_real_one_loads() -> None:
    assert compiled().lanes in (4, 8, 16)
