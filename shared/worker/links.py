"""What any node, router or worker, takes from the mesh file for its connections."""

from __future__ import annotations

from pathlib import Path

from shared.errors import ConfigError
from shared.runtime.settings import MeshConfig, NodeConfig, split_address
from shared.transport.line import LineSpec
from shared.transport.security import TlsFiles


def line_specs(mesh: MeshConfig) -> list[LineSpec]:
    """The mesh file's lines as the transport takes them: bytes and seconds."""
    return [
        LineSpec(
            name=line.name,
            between=line.between,
            rate=line.rate_mbit * 1e6 / 8,
            rtt=line.rtt_ms / 1e3,
            bulk_connections=line.bulk_connections,
            congestion=line.congestion,
            dscp=line.dscp,
            compress=line.compress,
        )
        for line in mesh.lines
    ]


def mesh_key(mesh: MeshConfig) -> bytes | None:
    """The key all nodes share; None where the mesh file names none. Raises ConfigError."""
    return key_file(mesh.security.key_file, "security.key_file").encode() or None


def tls_files(mesh: MeshConfig) -> TlsFiles | None:
    """Certificate files for mutual TLS; None where the mesh file names none."""
    security = mesh.security
    if not security.tls_cert:
        return None
    return TlsFiles(security.tls_cert, security.tls_key, security.tls_ca, names=security.tls_names)


def key_file(path: str, key: str) -> str:
    """A key from a file named under `key` in the mesh file; "" where it names none. Raises ConfigError."""
    if not path:
        return ""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(key, f"{path} cannot be read: {error}") from error


def route_to(mesh: MeshConfig, source: NodeConfig, node: str, address: str) -> tuple[str, int]:
    """Where `source` dials a peer that was named to it: the mesh file's word before the peer's own."""
    for known in mesh.nodes:
        if known.name == node:
            return mesh.address_of(known, source)
    return split_address(address, f"the address of {node}")
