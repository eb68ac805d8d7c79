"""API keys and tenants: who a request belongs to, and the salt that keeps tenants' caches apart. Knows no
HTTP."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from shared.errors import BadKey, ConfigError


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose request it is. Several keys may name one tenant; tenants share no cached block."""

    name: str

    def salt(self, cache_salt: str | None) -> bytes:
        """What goes into the root of this tenant's block hashes; `cache_salt` parts a tenant's own users.

        Equal at every router. Empty for the nameless tenant without a cache salt.
        """
        if not self.name and cache_salt is None:
            return b""
        hasher = hashlib.blake2b(digest_size=16, person=b"pdd-tenant")
        for part in (self.name, cache_salt):
            data = b"-" if part is None else b"+" + part.encode()
            hasher.update(len(data).to_bytes(8, "little") + data)
        return hasher.digest()


class Keys:
    """The keys that are accepted. None at all: every request belongs to the nameless tenant."""

    def __init__(self, entries: Iterable[tuple[str, str]] = ()) -> None:
        """`entries`: (tenant, key). Only digests are kept."""
        self._entries = [(_digest(key), Tenant(tenant)) for tenant, key in entries]

    def replace(self, other: Keys) -> None:
        """Accept another's keys from now on, and those before no longer."""
        self._entries = list(other._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def tenant(self, authorization: str | None) -> Tenant:
        """Whose the `Authorization: Bearer KEY` header is. Raises BadKey. Takes equally long for any wrong
        key."""
        if not self._entries:
            return Tenant("")
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise BadKey("no API key; send it as `Authorization: Bearer KEY` (or as `x-api-key`)")
        given = _digest(key.strip())
        found: Tenant | None = None
        for digest, tenant in self._entries:
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None:
            raise BadKey("unknown API key; check the key, or ask whoever runs this service for one")
        return found


def read_keys(text: str, origin: str = "http.api_keys_file") -> Keys:
    """Keys from a file's text: `tenant key` a line, `#` begins a comment. Raises ConfigError naming the
    line."""
    entries: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ConfigError(origin, f"line {number} has {len(words)} words; write `tenant key`")
        if len(words[1]) < 8:
            raise ConfigError(origin, f"line {number}: a key has at least 8 characters")
        if words[1] in (key for _, key in entries):
            raise ConfigError(origin, f"line {number}: this key is there twice")
        entries.append((words[0], words[1]))
    if not entries:
        raise ConfigError(origin, "holds no key; write `tenant key` a line, or leave the setting empty")
    return Keys(entries)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
