"""A choice: exact counts, ends at stop ids and stop strings, text held across owners, one record for id and
logprob."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.front.choice import Choice, ChoiceRules, Delta
from services.router.front.detokenizer import Detokenizer
from services.router.front.tokens import Tokenizer
from services.router.requests import Broken, Done, RequestEvent, Tokens
from shared.errors import RequestFailed
from shared.wire.messages import FinishReason, Role, TokenLogprob

PROMPT = 10
EOS = 2


def choice(
    tokenizer: Tokenizer, *stops: str, min_tokens: int = 0, include: bool = False, ids: int = EOS
) -> Choice:
    rules = ChoiceRules(
        prompt_len=PROMPT,
        stop_ids=frozenset({EOS, ids}),
        eos_ids=frozenset({EOS}),
        stops=stops,
        min_tokens=min_tokens,
        include_stop=include,
    )
    return Choice(0, rules, Detokenizer(tokenizer.vocabulary))


def tokens(start: int, ids: Sequence[int], owner: Role = Role.RELAY, *, logprobs: bool = False) -> Tokens:
    made = tuple(TokenLogprob(-float(token)) for token in ids) if logprobs else None
    return Tokens(start, tuple(ids), made, owner)


def done(at: int, reason: FinishReason = FinishReason.STOP) -> Done:
    return Done(reason, at, 5, {"pipeline": "P-RLD-MD"})


def feed(one: Choice, *events: RequestEvent) -> list[Delta]:
    found = [one.absorb([event]) for event in events]
    return [delta for delta in found if delta is not None]


def test_a_stop_id_counts_and_has_no_text(tokenizer: Tokenizer) -> None:
    one = choice(tokenizer)
    ids = [*tokenizer.encode("hello"), EOS]
    deltas = feed(one, tokens(PROMPT, ids), done(PROMPT + len(ids)))
    assert "".join(delta.text for delta in deltas) == "hello"
    assert one.ids == ids
    assert deltas[-1].finish is FinishReason.STOP
    assert deltas[-1].stop is None
    assert one.cached_tokens == 5


def test_a_clients_stop_id_is_named(tokenizer: Tokenizer) -> None:
    (world,) = tokenizer.encode(" world")
    one = choice(tokenizer, ids=world)
    deltas = feed(one, tokens(PROMPT, [*tokenizer.encode("hello"), world]), done(PROMPT + 2))
    assert "".join(delta.text for delta in deltas) == "hello"
    assert deltas[-1].stop == world


def test_text_held_at_the_cut_is_shown_when_main_goes_on(tokenizer: Tokenizer) -> None:
    one = choice(tokenizer, "ozzy")
    first = one.absorb([tokens(PROMPT, tokenizer.encode("o"), Role.RELAY)])
    assert first is not None
    assert first.text == ""
    second = one.absorb([tokens(PROMPT + 1, tokenizer.encode("there"), Role.MAIN)])
    assert second is not None
    assert second.text == "othere"


def test_main_completes_the_stop_string(tokenizer: Tokenizer) -> None:
    one = choice(tokenizer, "END")
    letters = [tokenizer.encode(letter)[0] for letter in "xENDyz"]
    shown = feed(one, tokens(PROMPT, letters[:3]), tokens(PROMPT + 3, letters[3:], Role.MAIN))
    assert "".join(delta.text for delta in shown) == "x"
    assert one.stop_at == PROMPT + 4
    assert one.ids == letters[:4]
    last = feed(one, done(PROMPT + 6, FinishReason.LENGTH))
    assert last[-1].finish is FinishReason.STOP
    assert last[-1].stop == "END"


def test_held_text_comes_with_the_end(tokenizer: Tokenizer) -> None:
    one = choice(tokenizer, "END")
    ids = [tokenizer.encode(letter)[0] for letter in "xEN"]
    deltas = feed(one, tokens(PROMPT, ids), done(PROMPT + 3, FinishReason.LENGTH))
    assert "".join(delta.text for delta in deltas) == "xEN"
    assert deltas[-1].finish is FinishReason.LENGTH


def test_min_tokens_disarms_stop_strings(tokenizer: Tokenizer) -> None:
    one = choice(tokenizer, "x", min_tokens=2)
    ids = [tokenizer.encode("x")[0]] * 4
    deltas = feed(one, tokens(PROMPT, ids))
    assert "".join(delta.text for delta in deltas) == "xx"
    assert one.stop_at == PROMPT + 3


def test_ids_and_logprobs_are_one_record(tokenizer: Tokenizer) -> None:
    one = choice(tokenizer)
    ids = [*tokenizer.encode("é hello"), EOS]
    deltas = feed(one, tokens(PROMPT, ids, logprobs=True), done(PROMPT + len(ids)))
    drawn = [record for delta in deltas for record in delta.drawn]
    assert [record.id for record in drawn] == ids == one.ids
    assert [record.logprob.logprob for record in drawn if record.logprob] == [-float(token) for token in ids]
    assert [record.offset for record in drawn] == [0, 0, 1, 7]


def test_a_failure_is_kept_and_nothing_follows(tokenizer: Tokenizer) -> None:
    one = choice(tokenizer)
    error = RequestFailed("worker md-1 gave up: nan")
    feed(one, tokens(PROMPT, tokenizer.encode("a")), Broken(error), tokens(PROMPT + 1, [5]))
    assert one.failure is error
    assert one.finish is None
    assert one.ended
    assert len(one.ids) == 1


def test_runs_of_any_length_give_the_same_answer(tokenizer: Tokenizer) -> None:
    @settings(max_examples=200, deadline=None)
    @given(
        st.text(alphabet="helo wrd😀é", max_size=20),
        st.lists(st.text(alphabet="elo 😀", min_size=1, max_size=3), max_size=2),
        st.lists(st.integers(1, 6), min_size=1, max_size=40),
        st.integers(0, 3),
    )
    def check(text: str, stops: list[str], sizes: list[int], min_tokens: int) -> None:
        ids = tokenizer.encode(text)

        def answer(runs: list[int]) -> tuple[str, list[int], object, object]:
            one = choice(tokenizer, *stops, min_tokens=min_tokens)
            shown, at = "", 0
            for size in runs:
                delta = one.absorb([tokens(PROMPT + at, ids[at : at + size])])
                shown += delta.text if delta else ""
                at += size
            last = one.absorb([done(PROMPT + len(ids), FinishReason.LENGTH)])
            assert last is not None
            return shown + last.text, one.ids, one.stop_at, last.stop

        assert answer([1] * len(ids)) == answer([*sizes, len(ids) + 1])

    check()
