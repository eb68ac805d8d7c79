"""The benchmark of the index asks two holders the same: both answer right."""

from __future__ import annotations

import pytest

from benchmarks.mesh.index import HOLDERS, Shape, fill, sha_chain

SMALL = Shape(blocks=4000, workers=4, block_tokens=4, tokens=256, looks=2)


@pytest.mark.parametrize("name", list(HOLDERS))
def test_each_holder_finds_the_prompt_after_much_has_changed(name: str) -> None:
    filled = fill(name, SMALL, 1)
    assert filled.rate > 0
    assert filled.lookup > 0


def test_the_plain_chain_depends_on_all_ids_before() -> None:
    one, other = sha_chain(b"", range(16), 4), sha_chain(b"", [9, *range(1, 16)], 4)
    assert len(one) == 4
    assert not set(one) & set(other)
    assert sha_chain(b"", [*range(12), 0, 0, 0, 0], 4)[:3] == one[:3]
