"""Signs of life: pings, suspicion, dropped connections, the end of the lease."""

from __future__ import annotations

from shared.policy.config import LinkPolicy
from shared.wire.liveness import Act, Liveness

POLICY = LinkPolicy(ping_every=0.5, suspect_after=2.0, lease=30.0)
PERIOD = Liveness.period(POLICY)


def run(life: Liveness, start: float, seconds: float) -> list[tuple[float, Act]]:
    """Tick regularly; what was due, and when."""
    found = []
    for step in range(1, round(seconds / PERIOD) + 1):
        now = start + step * PERIOD
        found += [(now, act) for act in life.tick(now)]
    return found


def acts(found: list[tuple[float, Act]]) -> list[Act]:
    return [act for _, act in found if act is not Act.PING]


def connected() -> Liveness:
    life = Liveness(POLICY, 0.0)
    life.connected(0.0)
    return life


def test_pings_at_their_pace_while_connected() -> None:
    life = connected()
    found = []
    for step in range(1, 41):
        life.heard(step * PERIOD, control=True)
        found += life.tick(step * PERIOD)
    assert found == [Act.PING] * 20


def test_silence_is_suspect_and_both_kinds_of_connection_are_dropped() -> None:
    found = run(connected(), 0.0, 2.0)
    assert acts(found) == [Act.SUSPECT, Act.DROP_CONTROL, Act.DROP_BULK]
    assert found[-1][0] == 2.0


def test_a_silent_control_connection_is_dropped_though_bulk_bytes_come() -> None:
    life = connected()
    seen = []
    for step in range(1, 9):
        life.heard(step * PERIOD, control=False)
        seen += life.tick(step * PERIOD)
    assert [act for act in seen if act is not Act.PING] == [Act.DROP_CONTROL]
    assert not life.suspect


def test_alive_again_after_a_sign() -> None:
    life = connected()
    run(life, 0.0, 2.0)
    assert life.suspect
    assert life.heard(2.0, control=True)  # says that there is something to tell
    life.disconnected(2.0)
    life.connected(2.2)
    assert life.tick(2.25) == [Act.ALIVE]
    assert not life.suspect


def test_lost_when_the_lease_is_over_and_not_before() -> None:
    life = connected()
    life.disconnected(0.0)
    assert acts(run(life, 0.0, 29.75)) == [Act.SUSPECT]
    assert acts(run(life, 29.75, 0.25)) == [Act.LOST]


def test_a_reconnection_renews_the_lease() -> None:
    life = connected()
    life.disconnected(0.0)
    run(life, 0.0, 29.0)
    life.connected(29.0)
    life.disconnected(29.0)
    assert Act.LOST not in acts(run(life, 29.0, 29.0))


def test_a_process_that_stood_still_blames_nobody() -> None:
    life = connected()
    for step in range(1, 5):
        life.heard(step * PERIOD, control=True)
        life.tick(step * PERIOD)
    stopped = 4 * PERIOD + 3600.0
    assert acts([(stopped, act) for act in life.tick(stopped)]) == []
    assert acts(run(life, stopped, 1.5)) == []
    assert acts(run(life, stopped + 1.5, 1.0))[:3] == [Act.SUSPECT, Act.DROP_CONTROL, Act.DROP_BULK]
