"""Proofs that a side of a handshake holds the shared key: HMAC-SHA256, labelled by role (pure)."""

from __future__ import annotations

import hmac

import msgspec

from shared.wire.messages import Welcome


def listener_proof(key: bytes, hello: bytes, welcome: Welcome) -> bytes:
    """Over the whole Hello and what the listener claims; fields that later versions add are not covered
    here but by the dialler's proof."""
    claims = msgspec.msgpack.encode(
        (
            welcome.version,
            welcome.node,
            welcome.role,
            welcome.datacenter,
            welcome.incarnation,
            welcome.last_seq,
            welcome.fingerprint,
            welcome.template,
            welcome.layout,
            welcome.nonce,
            welcome.session,
        )
    )
    return _mac(key, b"pdd-mesh 1 listener", hello, claims)


def dialler_proof(key: bytes, hello: bytes, welcome: bytes) -> bytes:
    """Over both headers as they travelled."""
    return _mac(key, b"pdd-mesh 1 dialler", hello, welcome)


def _mac(key: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(key, digestmod="sha256")
    for part in parts:
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()
