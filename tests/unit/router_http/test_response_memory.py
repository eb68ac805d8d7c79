"""Kept conversations: whole while they are kept, bounded, each tenant's own, and counted once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.front.openai import ChatMessage
from services.router.front.responses.memory import Kept, ResponseMemory


def said(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


def texts(kept: Kept | None) -> list[object] | None:
    return None if kept is None else [message.content for message in kept.conversation()]


def chain(memory: ResponseMemory, tenant: str, count: int, now: float = 0.0) -> Kept | None:
    """Answers that go on from one another: t0, t1 and so on."""
    before = None
    for at in range(count):
        memory.keep(now, tenant, f"t{at}", before, said(str(at)), b"{}")
        before = memory.find(now, tenant, f"t{at}")
    return before


def test_a_conversation_is_whole() -> None:
    memory = ResponseMemory(max_bytes=1 << 20, ttl=10)
    assert texts(chain(memory, "a", 4)) == ["0", "1", "2", "3"]
    assert texts(memory.find(1, "a", "t1")) == ["0", "1"]
    assert memory.find(1, "b", "t1") is None


def test_what_goes_on_from_an_answer_outlives_it() -> None:
    memory = ResponseMemory(max_bytes=1 << 20, ttl=10)
    chain(memory, "a", 3)
    size = memory.bytes
    assert memory.drop(1, "a", "t0")
    assert not memory.drop(1, "a", "t0")
    assert texts(memory.find(1, "a", "t2")) == ["0", "1", "2"]
    assert memory.bytes == size
    assert memory.drop(1, "a", "t2")
    assert memory.drop(1, "a", "t1")
    assert (memory.bytes, len(memory)) == (0, 0)


def test_an_answer_given_up_while_the_next_is_made_counts_for_as_long_as_that_holds_it() -> None:
    memory = ResponseMemory(max_bytes=1 << 20, ttl=10)
    before = chain(memory, "a", 2)
    size = memory.bytes
    assert memory.drop(1, "a", "t0")
    assert memory.drop(1, "a", "t1")
    assert memory.bytes == 0
    memory.keep(1, "a", "t2", before, said("2"), b"{}")
    assert texts(memory.find(1, "a", "t2")) == ["0", "1", "2"]
    assert memory.bytes == size // 2 * 3
    assert memory.drop(1, "a", "t2")
    assert (memory.bytes, len(memory)) == (0, 0)
    chain(memory, "a", 2)
    assert memory.bytes == size


def test_answers_are_forgotten_after_their_last_use() -> None:
    memory = ResponseMemory(max_bytes=1 << 20, ttl=10)
    chain(memory, "a", 2)
    assert memory.find(9, "a", "t1") is not None
    assert memory.find(12, "a", "t0") is None
    assert texts(memory.find(18, "a", "t1")) == ["0", "1"]
    assert memory.find(28, "a", "t1") is None
    assert memory.bytes == 0


def test_a_tenant_that_keeps_much_pushes_out_its_own() -> None:
    memory = ResponseMemory(max_bytes=20_000, ttl=10)
    memory.keep(0, "small", "one", None, said("x"), b"{}")
    for at in range(50):
        memory.keep(1, "large", f"l{at}", None, said("y" * 100), b"{}")
    assert memory.bytes <= 20_000
    assert memory.find(2, "small", "one") is not None
    assert memory.find(2, "large", "l49") is not None
    assert memory.find(2, "large", "l0") is None


def test_an_answer_larger_than_the_memory_is_not_kept() -> None:
    memory = ResponseMemory(max_bytes=2000, ttl=10)
    memory.keep(0, "a", "big", None, said("x" * 3000), b"{}")
    assert memory.find(0, "a", "big") is None
    assert memory.bytes == 0


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "find", "drop"]),
        st.sampled_from("ab"),
        st.integers(0, 6),
        st.integers(-1, 6),
        st.floats(0, 4),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(ACTS, st.sampled_from([0, 3000, 8000, 1 << 20]))
def test_bytes_are_those_that_are_held(acts: list[tuple[str, str, int, int, float]], most: int) -> None:
    memory = ResponseMemory(max_bytes=most, ttl=10)
    now, made = 0.0, 0
    for act, tenant, name, earlier, pause in acts:
        now += pause
        if act == "keep":
            before = memory.find(now, tenant, f"n{made + 1 - earlier}")
            made += 1
            memory.keep(now, tenant, f"n{made}", before, said("x" * 50 * name), b"{}")
        elif act == "find":
            memory.find(now, tenant, f"n{made - name}")
        else:
            memory.drop(now, tenant, f"n{made - name}")
        held: dict[int, int] = {}
        for table in memory._tenants.values():
            for kept in table.values():
                one: Kept | None = kept
                while one is not None:
                    held[id(one)] = one.size
                    one = one.before
        assert memory.bytes == sum(held.values()) <= most
