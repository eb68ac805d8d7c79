"""Splicing: what is recalled always decodes to the text it stands for, and drawn ids come back where they
can."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.front.splice import Recall, SpliceMemory
from services.router.front.tokens import Tokenizer

SALT = b"tenant"
START = "<|im_start|>user\nthe question<|im_end|>\n<|im_start|>assistant\n"
NEXT = "<|im_end|>\n<|im_start|>user\nand other<|im_end|>\n<|im_start|>assistant\n"
EOS = 2
WORDS = st.text("ab<", max_size=40)


def memory(tokenizer: Tokenizer, **changes: float) -> SpliceMemory:
    limits = {"max_bytes": 1 << 20, "max_turns": 100, "ttl": 60.0} | changes
    return SpliceMemory(
        tokenizer.vocabulary,
        max_bytes=int(limits["max_bytes"]),
        max_turns=int(limits["max_turns"]),
        ttl=limits["ttl"],
    )


def whole(tokenizer: Tokenizer, recall: Recall) -> list[int]:
    return recall.ids + tokenizer.encode(recall.rest)


def keep(
    tokenizer: Tokenizer, kept: SpliceMemory, answer: list[int], *, start: str = START, chat: bool = True
) -> list[int]:
    """Remember an answer to `start`; the prompt's ids."""
    recall = kept.recall(0.0, SALT, start)
    ids = whole(tokenizer, recall)
    kept.remember(0.0, recall.place, ids, answer, chat=chat)
    return ids


def odd(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text that the tokenizer would not give: one a byte."""
    return [token for byte in text for token in tokenizer.encode(byte)]


def test_an_answer_with_its_own_ids_comes_back_whole(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer)
    answer = [*odd(tokenizer, "hello world"), EOS]
    prompt = keep(tokenizer, kept, answer)
    text = START + "hello world" + NEXT
    recall = kept.recall(1.0, SALT, text)
    assert recall.result == "full"
    assert recall.ids == prompt + answer
    assert recall.drawn == len(answer)
    assert tokenizer.decode(whole(tokenizer, recall)) == text
    assert tokenizer.encode(text) != whole(tokenizer, recall)
    assert not kept.divergences


def test_a_conversation_of_many_turns_keeps_every_answer(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer)
    text, log = START, list[int]()
    for turn in range(6):
        recall = kept.recall(float(turn), SALT, text)
        ids = whole(tokenizer, recall)
        assert ids[: len(log)] == log
        assert tokenizer.decode(ids) == text
        said = "hello answer number " * 40 + str(turn)
        answer = [*odd(tokenizer, said), EOS]
        kept.remember(float(turn), recall.place, ids, answer, chat=True)
        log = ids + answer
        text += said + NEXT
    assert kept.results == {"none": 1, "full": 5}


@pytest.mark.parametrize(
    ("drawn", "returned", "reason"),
    [
        ("hello world \n", "hello world", "trimmed"),
        ("<think>the time</think>\n\nhello world", "hello world", "thinking"),
        ("hello world, the answer", "hello world, the", "cut"),
        ("hello world, the answer", "hello good, the answer", "edited"),
        ("hello<|im_start|> world", "hello world", "special"),
        ("hello<tool_call>{}</tool_call>", "hello<tool_call>{ }</tool_call>", "tool_call"),
    ],
)
def test_divergences_are_counted_by_reason_and_the_common_part_is_kept(
    tokenizer: Tokenizer, drawn: str, returned: str, reason: str
) -> None:
    kept = memory(tokenizer)
    ids = tokenizer.encode(drawn)
    prompt = keep(tokenizer, kept, [*ids, EOS])
    text = START + returned + NEXT
    recall = kept.recall(1.0, SALT, text)
    assert kept.divergences == {reason: 1}
    assert recall.result == ("prompt" if reason == "thinking" else "partial")
    assert recall.ids[: len(prompt)] == prompt
    assert tokenizer.decode(whole(tokenizer, recall)) == text
    assert recall.ids[len(prompt) :] == ids[: recall.drawn]


def test_broken_characters_come_back_as_the_ids_that_made_them(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer)
    broken = tokenizer.encode("😀")
    answer = [*tokenizer.encode("hello"), broken[1], *broken[:2], *tokenizer.encode(" world"), broken[0], EOS]
    prompt = keep(tokenizer, kept, answer)
    text = START + tokenizer.decode(answer[:-1]) + NEXT
    assert text.count("\ufffd") == 3
    recall = kept.recall(1.0, SALT, text)
    assert recall.result == "full"
    assert recall.ids == prompt + answer
    assert tokenizer.decode(whole(tokenizer, recall)) == text


def test_the_same_prompt_again_needs_no_tokenizing(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer)
    prompt = keep(tokenizer, kept, [5, EOS])
    recall = kept.recall(1.0, SALT, START)
    assert (recall.result, recall.ids, recall.rest) == ("prompt", prompt, "")
    assert not kept.divergences


def test_of_several_answers_the_one_that_returned_is_taken(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer)
    one, other = [*odd(tokenizer, "hello time"), EOS], [*odd(tokenizer, "hello good"), EOS]
    prompt = keep(tokenizer, kept, one)
    keep(tokenizer, kept, other)
    assert kept.recall(1.0, SALT, START + "hello time" + NEXT).ids == prompt + one
    assert kept.recall(1.0, SALT, START + "hello good" + NEXT).ids == prompt + other


def test_other_tenants_and_late_comers_find_nothing(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer)
    keep(tokenizer, kept, [*odd(tokenizer, "hello"), EOS])
    text = START + "hello" + NEXT
    assert kept.recall(1.0, b"other", text).result == "none"
    assert kept.recall(59.0, SALT, text).result == "full"
    assert kept.recall(120.0, SALT, text).result == "none"
    assert len(kept) == kept.bytes == 0


def test_a_text_prompt_is_only_cut_where_words_start(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer)
    start = "the good"
    answer = tokenizer.encode(" hello world")
    prompt = keep(tokenizer, kept, answer, start=start, chat=False)
    other = kept.recall(1.0, SALT, start + "ness")
    assert (other.result, other.rest) == ("none", start + "ness")
    longer = kept.recall(1.0, SALT, start + " hello worldly")
    assert longer.ids == prompt + answer[:1]
    assert longer.rest == " worldly"
    exact = kept.recall(1.0, SALT, start + " hello world")
    assert exact.ids == prompt + answer
    assert kept.recall(1.0, SALT, start + " hello world and").ids == prompt + answer


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=12), WORDS, st.sampled_from((0, 1020)))
def test_the_longest_prompt_that_a_text_begins_with_is_found(
    tokenizer: Tokenizer, prompts: list[str], text: str, before: int
) -> None:
    kept = memory(tokenizer)
    said = "x" * before  # so that prompts end in other chunks than they begin in
    for prompt in prompts:
        recall = kept.recall(0.0, SALT, said + prompt)
        kept.remember(0.0, recall.place, [len(prompt)], [EOS], chat=True)
    longest = max((len(prompt) for prompt in prompts if text.startswith(prompt)), default=None)
    recall = kept.recall(0.0, SALT, said + text)
    assert recall.ids[:1] == ([] if longest is None else [longest])
    for turn in list(kept._turns.values()):
        kept._drop(turn)
    assert not kept._by_key


def test_bounds_hold(tokenizer: Tokenizer) -> None:
    kept = memory(tokenizer, max_bytes=8000, max_turns=5)
    for turn in range(50):
        keep(tokenizer, kept, list(range(turn + 1)), start=f"{START}{turn}")
        assert kept.bytes <= 8000
        assert len(kept) <= 5
    assert kept.bytes == sum(turn.size for turn in kept._turns.values())


def test_whatever_was_drawn_and_whatever_returns_the_ids_decode_to_the_text(tokenizer: Tokenizer) -> None:
    pieces = [
        "hello",
        " world",
        "é",
        "😀",
        "\n",
        " ",
        "<|im_end|>",
        "<think>",
        "</think>",
        " the",
        "\ufffd",
        "ing",
    ]
    texts = st.lists(st.sampled_from(pieces), max_size=8).map("".join)

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.integers(0, 352), max_size=12),
        texts,
        st.integers(0, 40),
        texts,
        st.booleans(),
        st.integers(),
    )
    def check(noise: list[int], said: str, cut: int, after: str, chat: bool, seed: int) -> None:
        kept = memory(tokenizer)
        chosen = random.Random(seed)
        answer = tokenizer.encode(said) if chosen.random() < 0.5 else odd(tokenizer, said)
        at = chosen.randrange(len(answer) + 1)
        answer = answer[:at] + (noise if chosen.random() < 0.3 else []) + answer[at:]
        said = tokenizer.decode(answer) if chosen.random() < 0.3 else said
        start = START * chosen.choice((1, 20))
        keep(tokenizer, kept, answer or [5], start=start, chat=chat)
        text = start + said[:cut] + after
        recall = kept.recall(1.0, SALT, text)
        assert tokenizer.decode(whole(tokenizer, recall)) == text

    check()
