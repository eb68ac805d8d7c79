"""The command line all services share: `python -m services.<role> --config mesh.toml --node NAME`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from shared.errors import ConfigError
from shared.runtime.logs import set_up_logs
from shared.runtime.mesh_file import load_mesh
from shared.runtime.service import Service, run_service
from shared.runtime.settings import MeshConfig, NodeConfig, RoleName


def service_main(
    role: RoleName,
    make: Callable[[MeshConfig, NodeConfig], Service],
    arguments: Sequence[str] | None = None,
    *,
    more: str = "",
) -> int:
    """Parse, load the mesh file, set up logs, run; the exit code. 2: the command line or the file is
    wrong. `more` ends the help."""
    parser = argparse.ArgumentParser(prog=f"python -m services.{role}", epilog=more)
    parser.add_argument("--config", required=True, metavar="mesh.toml", help="the mesh file")
    parser.add_argument("--node", default="", help=f"which [[nodes]] entry to be (default: the only {role})")
    options = parser.parse_args(arguments)
    try:
        mesh = load_mesh(options.config)
        node = pick_node(mesh, role, options.node)
    except ConfigError as error:
        sys.stderr.write(f"{role}: {error}\n")
        return 2
    set_up_logs(mesh.logs, node=node.name, role=role)
    return run_service(lambda: make(mesh, node))


def pick_node(mesh: MeshConfig, role: RoleName, name: str) -> NodeConfig:
    """The node to be. Raises ConfigError where the name is missing, ambiguous, or of another role."""
    if name:
        node = mesh.node(name)
        if node.role != role:
            advice = f"start it with python -m services.{node.role}"
            raise ConfigError("--node", f"{name!r} is a {node.role}; {advice}")
        return node
    fitting = [node for node in mesh.nodes if node.role == role]
    if len(fitting) != 1:
        names = ", ".join(node.name for node in fitting) or "none"
        raise ConfigError("--node", f"name one of this file's {role} nodes: {names}")
    return fitting[0]
