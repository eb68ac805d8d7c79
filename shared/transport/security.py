"""Who may listen where, and TLS contexts from files. Knows no connections."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of this node: mutual TLS 1.3 with peers whose certificates `ca` has signed."""

    cert: str
    key: str
    ca: str


class Tls:
    """The two contexts of a node; `reload` takes renewed files for connections made from then on."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.server = _context(ssl.PROTOCOL_TLS_SERVER)
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT)
        self.reload()

    def reload(self) -> None:
        """Read the files again. Raises ConfigError naming the file; what was loaded before stays in use
        then."""
        files = self._files
        for context in (self.server, self.client):
            try:
                context.load_verify_locations(files.ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError("security.tls_ca", f"{files.ca}: {error}") from error
            try:
                context.load_cert_chain(files.cert, files.key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError("security.tls_cert", f"{files.cert} with {files.key}: {error}") from error


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # any certificate of the mesh's own authority is a member
    context.verify_mode = ssl.CERT_REQUIRED
    return context


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
