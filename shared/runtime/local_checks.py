"""What one node needs on the machine it is to run on: model, keys, certificates, traces, addresses,
kernel settings.

Asks the machine, changes nothing. What the file itself says is `mesh_checks`.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

from shared.runtime.own_certificate import names
from shared.runtime.reading import Problem
from shared.runtime.settings import MeshConfig, ModelConfig, NodeConfig, split_address
from shared.runtime.tracing import NOT_INSTALLED

_LEAST_KEY = 16
_IPV4 = Path("/proc/sys/net/ipv4")


def local_problems(mesh: MeshConfig, node: NodeConfig) -> Iterator[Problem]:
    """What would keep `node` from serving here."""
    yield from _models(mesh, node)
    yield from _keys(mesh, node)
    yield from _certificates(mesh, node)
    yield from _tracing(mesh)
    yield from _addresses(mesh, node)
    yield from _congestion(mesh, node)


def local_notes(mesh: MeshConfig, node: NodeConfig, settings: Path = _IPV4) -> Iterator[Problem]:
    """What would make it slower than the line: socket buffers below the bandwidth-delay product."""
    for index, line in enumerate(mesh.lines):
        product = int(line.rate_mbit * 1e6 / 8 * line.rtt_ms / 1e3)
        if node.datacenter not in line.between or not product:
            continue
        for name in ("tcp_rmem", "tcp_wmem"):
            most = _last_number(settings / name)
            if most is not None and most < 2 * product:
                advice = f"set net.ipv4.{name} to at least {2 * product} (docs/operations.md)"
                yield Problem(
                    f"lines[{index}]",
                    f"{line.rate_mbit:g} Mbit/s x {line.rtt_ms:g} ms keeps {product} bytes under way, and "
                    f"net.ipv4.{name} allows {most}; {advice}",
                )


def _models(mesh: MeshConfig, node: NodeConfig) -> Iterator[Problem]:
    """A router's models, all of them; a worker's own."""
    for index, model in enumerate(mesh.served):
        if node.role == "router" or model == mesh.model_of(node):
            path = f"models[{index}].path" if mesh.models else "model.path"
            yield from _model(model, path, weights=model.engine == "torch" and node.role != "router")


def _model(model: ModelConfig, path: str, *, weights: bool) -> Iterator[Problem]:
    directory = Path(model.path).expanduser()
    if not directory.is_dir():
        yield Problem(path, f"{directory} is no directory on this machine")
        return
    for name in ("tokenizer.json", "config.json") if weights else ("tokenizer.json",):
        if not (directory / name).is_file():
            yield Problem(path, f"{directory} holds no {name}; is it a Hugging Face directory?")
    if weights and not any(directory.glob("*.safetensors")):
        yield Problem(path, f"{directory} holds no *.safetensors: a worker needs the weights")


def _keys(mesh: MeshConfig, node: NodeConfig) -> Iterator[Problem]:
    key = mesh.security.key_file
    if key:
        size = yield from _size("security.key_file", key)
        if size is not None and size < _LEAST_KEY:
            yield Problem("security.key_file", f"{key} holds {size} bytes; at least {_LEAST_KEY} are needed")
    if node.role != "router":
        return
    for path, name in (
        ("api_keys_file", mesh.http.api_keys_file),
        ("admin_key_file", mesh.http.admin_key_file),
    ):
        size = (yield from _size(f"http.{path}", name)) if name else None
        if size == 0:
            yield Problem(f"http.{path}", f"{name} is empty")


def _tracing(mesh: MeshConfig) -> Iterator[Problem]:
    tracing = mesh.tracing
    if not tracing.endpoint:
        return
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http") and find_spec("opentelemetry.sdk")
    except ModuleNotFoundError:
        found = None
    if found is None:
        yield Problem("tracing.endpoint", NOT_INSTALLED)
    if tracing.headers_file:
        yield from _size("tracing.headers_file", tracing.headers_file)


def _size(path: str, name: str) -> Generator[Problem, None, int | None]:
    """Problems of reading a file; the value, for `yield from`, is its size without blanks around."""
    try:
        return len(Path(name).expanduser().read_bytes().strip())
    except OSError as error:
        yield Problem(path, f"{name}: {error.strerror}")
        return None


def _certificates(mesh: MeshConfig, node: NodeConfig) -> Iterator[Problem]:
    security = mesh.security
    if not security.tls_cert:
        return
    unread = list(_unread_certificates(mesh))
    yield from unread
    if unread:
        return
    try:
        found = names(security.tls_cert, security.tls_key, security.tls_ca)
    except (OSError, ssl.SSLError) as error:
        yield Problem(
            "security.tls_cert", f"{security.tls_cert} will not be taken by peers: {_reason(error)}"
        )
        return
    if security.tls_names and node.name not in found:
        made_out = ", ".join(found) or "nobody"
        advice = f"issue one with subjectAltName DNS:{node.name} or URI:pdd://{node.name}"
        yield Problem("security.tls_cert", f"{security.tls_cert} is made out to {made_out}; {advice}")


def _unread_certificates(mesh: MeshConfig) -> Iterator[Problem]:
    security = mesh.security
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(security.tls_cert, security.tls_key)
    except (OSError, ssl.SSLError) as error:
        yield Problem("security.tls_cert", f"{security.tls_cert} with {security.tls_key}: {_reason(error)}")
    try:
        context.load_verify_locations(security.tls_ca)
    except (OSError, ssl.SSLError) as error:
        yield Problem("security.tls_ca", f"{security.tls_ca}: {_reason(error)}")


def _addresses(mesh: MeshConfig, node: NodeConfig) -> Iterator[Problem]:
    """Whether the hosts to listen on are this machine's; the ports may be taken by the node itself."""
    index = mesh.nodes.index(node)
    for key, value in (("listen", node.listen), ("http", node.http)):
        if not value:
            continue
        path = f"nodes[{index}].{key}"
        host, _ = split_address(value, path)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            try:
                sock.bind((host, 0))
            except OSError as error:
                yield Problem(path, f"{host} cannot be listened on here: {_reason(error)}")


def _congestion(mesh: MeshConfig, node: NodeConfig) -> Iterator[Problem]:
    available = _words(_IPV4 / "tcp_available_congestion_control")
    allowed = _words(_IPV4 / "tcp_allowed_congestion_control")
    for index, line in enumerate(mesh.lines):
        wanted = line.congestion
        if not wanted or node.datacenter not in line.between or available is None:
            continue
        if wanted not in available:
            known = ", ".join(available)
            advice = f"this kernel has {known}; load the module tcp_{wanted}, or leave it out"
            yield Problem(f"lines[{index}].congestion", f"{wanted!r} is not there: {advice}")
        elif allowed is not None and wanted not in allowed and os.geteuid() != 0:
            advice = "add it to net.ipv4.tcp_allowed_congestion_control"
            yield Problem(f"lines[{index}].congestion", f"{wanted!r} is for root alone: {advice}")


def _words(file: Path) -> list[str] | None:
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return None


def _last_number(file: Path) -> int | None:
    words = _words(file)
    return int(words[-1]) if words and words[-1].isdigit() else None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
