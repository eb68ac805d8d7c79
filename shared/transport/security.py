"""Who may listen where, and TLS contexts from files. Knows no connections."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.errors import ConfigError

_SCHEME = "pdd://"
"""Of URIs in certificates that name a node."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of this node: mutual TLS 1.3 with peers whose certificates `ca` has signed. `names`: and are
    made out to the node that shows them."""

    cert: str
    key: str
    ca: str
    names: bool = field(default=True, kw_only=True)


class Tls:
    """The two contexts of a node; `reload` takes renewed files for connections made from then on."""

    def __init__(self, files: TlsFiles) -> None:
        self.names = files.names
        self._files = files
        self._accepting = self._made(ssl.PROTOCOL_TLS_SERVER)
        self.client = self._made(ssl.PROTOCOL_TLS_CLIENT)
        self.server = self._made(ssl.PROTOCOL_TLS_SERVER)
        """For servers, which keep it: each connection is handed on to what was loaded last."""
        self.server.sni_callback = self._hand_on

    def reload(self) -> None:
        """Read the files again. Raises ConfigError naming the file; all that was loaded before stays in use
        then."""
        accepting, client = self._made(ssl.PROTOCOL_TLS_SERVER), self._made(ssl.PROTOCOL_TLS_CLIENT)
        self._accepting, self.client = accepting, client

    def _hand_on(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._accepting

    def _made(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        files, context = self._files, ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # addresses say nothing: a certificate names a node of the mesh
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("security.tls_ca", f"{files.ca}: {error}") from error
        try:
            context.load_cert_chain(files.cert, files.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("security.tls_cert", f"{files.cert} with {files.key}: {error}") from error
        return context


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The nodes that a peer's certificate is made out to, as `SSLSocket.getpeercert` gives it: its
    subjectAltNames `DNS:NAME` and `URI:pdd://NAME`. The subject says nothing."""
    found = []
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        if kind == "DNS":
            found.append(value)
        elif kind == "URI" and value.startswith(_SCHEME):
            found.append(value.removeprefix(_SCHEME))
    return tuple(found)


def check_bind(host: str, *, key: bytes | None, tls: bool) -> None:
    """Whether a node may listen on `host`. Raises ConfigError where anyone could reach it unasked."""
    if key is not None or tls or is_loopback(host):
        return
    raise ConfigError(
        "nodes.listen",
        f"{host} can be reached from other machines and neither a key nor TLS is set; set security.key_file, "
        "or listen on 127.0.0.1",
    )


def check_key(key: bytes | None) -> None:
    """Whether a key is long enough to be one. Raises ConfigError."""
    if key is not None and len(key) < 16:
        raise ConfigError("security.key_file", f"holds {len(key)} bytes; at least 16 are needed")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
