"""Named deadlines, against a plain model."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.worker.timers import Timers

KEYS = st.sampled_from([("a", 1), ("a", 2), ("b", 1)])
WHEN = st.integers(0, 20)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, WHEN),
        st.tuples(st.just("sooner"), KEYS, WHEN),
        st.tuples(st.just("clear"), KEYS, WHEN),
        st.tuples(st.just("due"), KEYS, WHEN),
    ),
    max_size=200,
)


@given(ACTS)
@settings(max_examples=100, deadline=None)
def test_timers_equal_a_dictionary(acts: list[tuple[str, tuple[str, int], int]]) -> None:
    timers = Timers()
    model: dict[tuple[str, int], float] = {}
    for act, key, when in acts:
        if act == "set":
            timers.set(key, when)
            model[key] = when
        elif act == "sooner":
            timers.sooner(key, when)
            model[key] = min(model.get(key, when), when)
        elif act == "clear":
            timers.clear(key)
            model.pop(key, None)
        else:
            due = timers.due(when)
            assert set(due) == {key for key, at in model.items() if at <= when}
            times = {str(key): at for key, at in model.items()}
            assert [times[str(key)] for key in due] == sorted(times[str(key)] for key in due)
            model = {key: at for key, at in model.items() if at > when}
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
        assert all(timers.has(key) == (key in model) for key in [("a", 1), ("a", 2), ("b", 1)])
