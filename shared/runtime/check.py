"""`--check`: says everything that is wrong with a mesh file, and with this machine for one of its nodes."""

from __future__ import annotations

from typing import TextIO

from shared.errors import ConfigError
from shared.runtime.local_checks import local_notes, local_problems
from shared.runtime.mesh_file import load_mesh, say
from shared.runtime.settings import MeshConfig


def check(path: str, node: str, out: TextIO) -> int:
    """The exit code: 0 where the file is right (notes may be said), 2 where it, or this machine, is not."""
    try:
        mesh = load_mesh(path)
        here = mesh.node(node) if node else None
    except ConfigError as error:
        out.write(f"{error}\n")
        return 2
    problems = list(local_problems(mesh, here)) if here else []
    if problems:
        out.write(f"{path}: {node} cannot run here: {say(problems)}\n")
        return 2
    out.write(f"{path}: right; {_contents(mesh)}" + (f"; {node} can run here\n" if node else "\n"))
    out.writelines(f"  note: {note}\n" for note in (local_notes(mesh, here) if here else ()))
    return 0


def _contents(mesh: MeshConfig) -> str:
    counts = (
        (len(mesh.nodes), "node"),
        (len(mesh.datacenters), "datacenter"),
        (len(mesh.lines), "line"),
    )
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
