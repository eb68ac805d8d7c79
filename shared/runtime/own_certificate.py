"""This node's own certificate as its peers will see it: a handshake of it with itself, in memory."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def names(cert: str, key: str, ca: str) -> list[str]:
    """The nodes that the certificate is made out to (`DNS:NAME` and `URI:pdd://NAME`). Raises OSError or
    ssl.SSLError where the files cannot be read, or peers that trust `ca` would not take it."""
    contexts = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for context in contexts:
        context.check_hostname = False
        context.load_verify_locations(ca)
        context.load_cert_chain(cert, key)
        context.verify_mode = ssl.CERT_REQUIRED
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts[0].wrap_bio(there, back, server_side=True)
    client = contexts[1].wrap_bio(back, there)
    for side in (client, server, client, server):
        _step(side.do_handshake)
    certificate: Mapping[str, Any] = client.getpeercert() or {}
    shown: Sequence[tuple[str, str]] = certificate.get("subjectAltName", ())
    return [
        value.removeprefix("pdd://") for kind, value in shown if kind == "DNS" or value.startswith("pdd://")
    ]


def _step(handshake: Callable[[], None]) -> None:
    try:
        handshake()
    except ssl.SSLWantReadError:
        return  # the other side's turn
