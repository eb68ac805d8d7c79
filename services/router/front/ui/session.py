"""Who may watch: the admin key once, then a cookie that only this router and its next lives can have made.

A cookie holds its end and a proof, an HMAC under a key derived from the admin key: nothing is kept here, a
router that restarts goes on knowing its viewers, and another admin key ends them all. Knows no HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

LASTS = 12 * 3600
"""Seconds until the key is asked for again."""

_LABEL = b"pdd live page session"
_MOST = 200


class Sessions:
    """Cookies of one router's viewers."""

    def __init__(
        self, key: str, node: str, wall: Callable[[], float], random_bits: Callable[[int], int]
    ) -> None:
        self._given = _digest(key)
        self._secret = hmac.digest(key.encode(), _LABEL, "sha256")
        self._node = node
        self._wall = wall
        self._random_bits = random_bits
        self.name = f"pdd-ui-{_digest(node).hex()[:8]}"
        """Of the cookie: routers on other ports of this host have others."""

    def opens(self, key: str) -> bool:
        """Whether this is the admin key. Takes equally long for any other."""
        return hmac.compare_digest(self._given, _digest(key))

    def make(self) -> str:
        """A cookie's value that holds from now on."""
        body = f"{int(self._wall()) + LASTS}.{self._random_bits(64):016x}"
        return f"{body}.{self._proof(body)}"

    def left(self, value: str) -> float:
        """Seconds for which a cookie still holds; 0.0 where it is over or was not made here."""
        body, _, proof = value[:_MOST].rpartition(".")
        if not hmac.compare_digest(self._proof(body).encode(), proof.encode()):
            return 0.0
        return max(0.0, int(body.partition(".")[0]) - self._wall())

    def _proof(self, body: str) -> str:
        return hmac.digest(self._secret, f"{self._node}\n{body}".encode(), "sha256").hex()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
