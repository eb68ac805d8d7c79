"""Output lengths are learned per session, then per tenant; a singular session is not singular again at
once.
"""

from services.router.prediction import FEWEST, OutputPrediction, SingularMemory


def test_nothing_known_means_the_limit() -> None:
    assert OutputPrediction(10).predict("t", b"s", 500) == 500


def test_a_session_is_predicted_by_its_own_answers() -> None:
    made = OutputPrediction(10)
    for outputs in (10, 12, 11, 14, 13):
        made.observe("t", b"s", outputs)
    for _ in range(20):
        made.observe("t", b"other", 300)
    assert made.predict("t", b"s", 500) == 14
    assert made.predict("t", b"new", 500) == 300
    assert made.predict("other", b"s", 500) == 500


def test_the_limit_bounds_the_prediction() -> None:
    made = OutputPrediction(10)
    for _ in range(FEWEST):
        made.observe("t", b"s", 300)
    assert made.predict("t", b"s", 20) == 20


def test_too_few_samples_say_nothing() -> None:
    made = OutputPrediction(10)
    for _ in range(FEWEST - 1):
        made.observe("t", b"s", 3)
    assert made.predict("t", b"s", 500) == 500


def test_old_samples_are_forgotten_and_keys_are_bounded() -> None:
    made = OutputPrediction(5)
    for _ in range(40):
        made.observe("t", b"s", 400)
    for _ in range(40):
        made.observe("t", b"s", 4)
    assert made.predict("t", b"s", 500) == 4
    for at in range(100):
        made.observe(f"t{at}", b"s", 1)
    assert len(made) <= 5


def test_a_singular_session_is_not_singular_twice_in_a_row() -> None:
    made = SingularMemory(10)
    first, longer, other = [b"1", b"2"], [b"1", b"2", b"3"], [b"1", b"9"]
    assert made.allows(first)
    made.ended_at_relay(first)
    assert not made.allows(longer)
    assert not made.allows(first)
    assert made.allows(other)
    made.ended_at_main(longer)
    assert made.allows(longer)


def test_singular_sessions_are_bounded() -> None:
    made = SingularMemory(3)
    for at in range(10):
        made.ended_at_relay([bytes([at])])
    assert len(made) == 3
    assert made.allows([bytes([0])])
    made.ended_at_relay([])
    assert len(made) == 3
