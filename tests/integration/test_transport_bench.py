"""One small run of the two processes: every byte lands in a block, and nothing is left in the pool."""

from __future__ import annotations

from benchmarks.transport.loopback import Setting, bare, ours


def test_ours_and_the_bare_socket_move_what_they_are_told() -> None:
    total = 24 << 20
    run = ours(Setting(total, 2, urgent=(0.0,), transfer=4 << 20))
    assert run.progress[-1][1] == total
    assert len(run.took) == 1
    assert run.facts["chunk_bytes_out"] == total
    assert bare(Setting(total)).progress[-1][1] == total
