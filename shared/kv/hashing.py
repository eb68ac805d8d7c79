"""The only hasher of token blocks. A block is shared only under an equal chain hash (I5).

The chain's root holds model fingerprint, KV layout and the tenant's salt; each full block's hash covers its
parent's hash and its ids, so that equal hashes mean equal whole prefixes. The partial last block has no
hash.
"""

from __future__ import annotations

import array
import hashlib
import sys
from collections.abc import Iterable, Sequence

HASH_BYTES = 16


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as u32 little-endian: the form that is hashed and that travels."""
    packed = array.array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes | memoryview) -> list[int]:
    """Inverse of `pack_ids`. Raises ValueError where the length is no multiple of 4."""
    unpacked = array.array("I")
    unpacked.frombytes(data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()


def chain_root(fingerprint: str, layout: bytes, salt: bytes) -> bytes:
    """16 bytes that key every hash of one (model, layout, tenant)."""
    hasher = hashlib.blake2b(digest_size=HASH_BYTES, person=b"pdd-root")
    for part in (fingerprint.encode(), layout, salt):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def extend_chain(parent: bytes, ids: bytes) -> bytes:
    """Hash of one full block: blake2b-128 of its packed ids, keyed by its parent's hash."""
    return hashlib.blake2b(ids, digest_size=HASH_BYTES, key=parent).digest()


def chain_hashes(
    root: bytes, ids: Sequence[int], block_tokens: int, known: Sequence[bytes] = ()
) -> list[bytes]:
    """Hashes of all full blocks of `ids`; `known` leading ones are taken as they are."""
    hashes = list(known)
    first = len(hashes)
    packed = pack_ids(ids[first * block_tokens :])
    step = 4 * block_tokens
    parent = hashes[-1] if hashes else root
    blake = hashlib.blake2b
    for at in range(0, len(packed) - step + 1, step):
        parent = blake(packed[at : at + step], digest_size=HASH_BYTES, key=parent).digest()
        hashes.append(parent)
    return hashes


def set_digest(hashes: Iterable[bytes]) -> bytes:
    """16 bytes that are equal where two sets of hashes are, in whatever order they come."""
    return hashlib.blake2b(b"".join(sorted(hashes)), digest_size=HASH_BYTES, person=b"pdd-set").digest()
