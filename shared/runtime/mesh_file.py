"""Reads `mesh.toml`: everything that is wrong with it is said at once, each by its key's path."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec

from shared.errors import ConfigError
from shared.runtime.mesh_checks import mesh_problems
from shared.runtime.reading import Problem, Reader
from shared.runtime.settings import MeshConfig

_CREDENTIALS = "$CREDENTIALS_DIRECTORY"
# Keys that name files: section, keys.
_FILES = (
    ("security", ("key_file", "tls_cert", "tls_key", "tls_ca")),
    ("http", ("api_keys_file", "admin_key_file")),
    ("tracing", ("headers_file",)),
)


def load_mesh(path: str | Path) -> MeshConfig:
    """Read and check a mesh file. Raises ConfigError: one line per problem, each with its key's path.

    Files that it names are taken relative to its own directory; `~` is the user's home, and a leading
    `$CREDENTIALS_DIRECTORY` is where systemd has put this service's credentials.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), f"is no UTF-8 text: {error.reason} at byte {error.start}") from error
    return _with_places(parse_mesh(text, str(file)), file.parent)


def parse_mesh(text: str, origin: str = "mesh.toml") -> MeshConfig:
    """Decode and check a mesh file's text. Raises ConfigError like `load_mesh`; file names stay as they are
    written."""
    mesh, problems = read_mesh(text, origin)
    if problems:
        raise ConfigError(origin, say(problems))
    return mesh


def read_mesh(text: str, origin: str = "mesh.toml") -> tuple[MeshConfig, list[Problem]]:
    """What could be read, and all problems found. Raises ConfigError where the text is no TOML."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(origin, f"is no TOML: {error}") from error
    reader = Reader(MeshConfig)
    mesh = reader.table(MeshConfig, raw)
    bad = [problem.path for problem in reader.problems]
    between = [problem for problem in mesh_problems(mesh) if not _follows(problem.path, bad)]
    return mesh, reader.problems + between


def say(problems: list[Problem]) -> str:
    """The problems as text: on one line where there is one."""
    if len(problems) == 1:
        return str(problems[0])
    return f"{len(problems)} problems\n  " + "\n  ".join(map(str, problems))


def _follows(path: str, bad: list[str]) -> bool:
    """Whether a problem only repeats one that was found before at the same place, or above it."""
    return any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in bad)


def _with_places(mesh: MeshConfig, directory: Path) -> MeshConfig:
    """All file names made absolute."""
    sections: dict[str, msgspec.Struct] = {}
    for section, keys in _FILES:
        values = getattr(mesh, section)
        placed = {key: _place(getattr(values, key), directory) for key in keys if getattr(values, key)}
        sections[section] = msgspec.structs.replace(values, **placed)
    models = tuple(msgspec.structs.replace(one, path=_place(one.path, directory)) for one in mesh.models)
    model = mesh.model
    if model is not None:
        model = msgspec.structs.replace(model, path=_place(model.path, directory))
    return msgspec.structs.replace(mesh, model=model, models=models, **sections)


def _place(name: str, directory: Path) -> str:
    if name.startswith(f"{_CREDENTIALS}/"):
        credentials = os.environ.get(_CREDENTIALS[1:])
        # Without systemd the name stays: whoever opens the file says that it is not there.
        return credentials + name.removeprefix(_CREDENTIALS) if credentials else name
    path = Path(name).expanduser()
    return str(path if path.is_absolute() else directory.absolute() / path)
