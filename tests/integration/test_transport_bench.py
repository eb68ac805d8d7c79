"""One small run of the two processes: every byte lands in a block, and nothing is left in the pool."""

from __future__ import annotations

from pathlib import Path

from benchmarks.transport.loopback import Setting, bare, ours, plain
from shared.transport.line import LineSpec


def test_ours_and_the_bare_socket_move_what_they_are_told() -> None:
    total = 24 << 20
    run = ours(Setting(total, 2, urgent=(0.0,), transfer=4 << 20))
    assert run.progress[-1][1] == total
    assert len(run.took) == 1
    assert run.facts["chunk_bytes_out"] == total
    assert bare(Setting(total)).progress[-1][1] == total
    assert plain(Setting(total)).progress[-1][1] == total


def test_content_is_compressed_and_compared(tmp_path: Path) -> None:
    content = tmp_path / "kv.bin"
    content.write_bytes(bytes(at % 251 if at % 2 else at % 3 for at in range(1 << 20)))
    line = LineSpec("wan", ("a", "b"), rate=100e6, compress="on")
    run = ours(Setting(8 << 20, 2, line=line, content=content))
    assert run.facts["encoded_bytes_before"] == 8 << 20
    assert run.facts["chunk_bytes_out"] < 7 << 20
