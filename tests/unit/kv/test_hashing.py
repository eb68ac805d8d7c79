"""The hashes are a wire format: every process of a mesh must compute the same ones."""

from __future__ import annotations

import hashlib

import pytest

from shared.kv.hashing import HASH_BYTES, chain_hashes, chain_root, extend_chain, pack_ids, unpack_ids

ROOT = bytes.fromhex("82fbf16fd006f85af97e6d72565bf8fa")


def test_root_golden() -> None:
    assert chain_root("fp", b"layout", b"salt") == ROOT
    assert chain_root("", b"", b"").hex() == "f0abf311cfd96a6b2ae4cfdfda338c16"


def test_root_is_keyed_blake2b_of_length_prefixed_parts() -> None:
    def part(data: bytes) -> bytes:
        return len(data).to_bytes(8, "little") + data

    message = part(b"fp") + part(b"layout") + part(b"salt")
    assert hashlib.blake2b(message, digest_size=16, person=b"pdd-root").digest() == ROOT


@pytest.mark.parametrize(
    "other",
    [
        ("fq", b"layout", b"salt"),
        ("fp", b"layouu", b"salt"),
        ("fp", b"layout", b""),
        ("fpl", b"ayout", b"salt"),
    ],
)
def test_root_differs_by_model_layout_and_tenant(other: tuple[str, bytes, bytes]) -> None:
    assert chain_root(*other) != ROOT


def test_chain_golden() -> None:
    assert [hash_.hex() for hash_ in chain_hashes(ROOT, list(range(10)), 4)] == [
        "fabc49529ba498505a7e573d831a102d",
        "1893ee02dfaecb2a1aff42c4d7442ac4",
    ]
    wide = chain_hashes(ROOT, [0xFFFFFFFF, 49151], 1)
    assert wide[1].hex() == "f0b68f08674dd63335363139e6c21c3e"


def test_chain_is_built_of_extend_chain() -> None:
    ids = list(range(100, 117))
    first = extend_chain(ROOT, pack_ids(ids[:8]))
    assert chain_hashes(ROOT, ids, 8) == [first, extend_chain(first, pack_ids(ids[8:16]))]
    assert len(first) == HASH_BYTES


def test_known_hashes_are_taken_over() -> None:
    ids = list(range(64))
    whole = chain_hashes(ROOT, ids, 8)
    for known in range(9):
        assert chain_hashes(ROOT, ids, 8, whole[:known]) == whole


@pytest.mark.parametrize("n", [0, 1, 7])
def test_less_than_a_block_has_no_hash(n: int) -> None:
    assert chain_hashes(ROOT, list(range(n)), 8) == []


def test_a_later_block_depends_on_every_earlier_id_and_on_order() -> None:
    ids = list(range(16))
    base = chain_hashes(ROOT, ids, 4)
    changed = chain_hashes(ROOT, [9, *ids[1:]], 4)
    swapped = chain_hashes(ROOT, [*ids[4:8], *ids[:4], *ids[8:]], 4)
    for index in range(4):
        assert changed[index] != base[index]
        assert swapped[index] != base[index]


def test_ids_travel_as_u32_little_endian() -> None:
    assert pack_ids([1, 258, 0xFFFFFFFF]) == b"\x01\0\0\0\x02\x01\0\0\xff\xff\xff\xff"
    assert unpack_ids(memoryview(pack_ids([1, 258, 0xFFFFFFFF]))) == [1, 258, 0xFFFFFFFF]
    assert unpack_ids(b"") == []


def test_bad_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack_ids(b"\0\0\0")
    with pytest.raises(OverflowError):
        pack_ids([-1])
    with pytest.raises(OverflowError):
        pack_ids([2**32])
