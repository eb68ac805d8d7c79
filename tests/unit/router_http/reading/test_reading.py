"""Reading answers: calls, thoughts and words come apart; a broken call is words; how the text was cut changes
nothing."""

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.router.front.reading.formats import FORMATS, Reading
from services.router.front.reading.pieces import Piece, Reader, Said, Thought, ToolCall, joined, merged

TOOLS = frozenset({"f", "get_weather"})
WEATHER = '{"city": "Paris", "at": [1, {"x": "}"}]}'


def reading(name: str, **how: bool) -> Reading:
    return Reading(FORMATS.get(name), TOOLS, **how)


def read(reader: Reader, *texts: str) -> list[Piece]:
    pieces = [piece for text in texts for piece in reader.add(text)]
    return merged(pieces + reader.end())


def tag(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


CALL = ToolCall("f", WEATHER)
ONE = '{"name": "f", "arguments": ' + WEATHER + "}"
LLAMA = '{"name": "f", "parameters": ' + WEATHER + "}"
TRICKY = '{"a": "</tool_call> <tool_call> \\" \\\\"}'

CASES: list[tuple[str, str, list[Piece]]] = [
    ("hermes", "hello  \n", [Said("hello  \n")]),
    ("hermes", tag(ONE), [CALL]),
    ("hermes", f"Let me see.\n\n{tag(ONE)}", [Said("Let me see."), CALL]),
    ("hermes", f"{tag(ONE)}\n{tag(ONE)}\n", [CALL, CALL]),
    ("hermes", f"one {tag(ONE)} two\n", [Said("one"), CALL, Said("  two")]),
    ("hermes", f"\n{tag(ONE)}\ntwo", [CALL, Said("two")]),
    ("hermes", tag(ONE).removesuffix("</tool_call>"), [CALL]),
    ("hermes", tag('{"name": "f"}'), [ToolCall("f", "{}")]),
    ("hermes", tag('{"name": "f", "arguments": null}'), [ToolCall("f", "{}")]),
    ("hermes", tag('{"arguments": "{\\"a\\": 1}", "name": "f"}'), [ToolCall("f", '{"a": 1}')]),
    ("hermes", tag('{"name": "f", "arguments": ' + TRICKY + "}"), [ToolCall("f", TRICKY)]),
    ("hermes", tag('{"name": "unheard_of", "arguments": {}}'), [ToolCall("unheard_of", "{}")]),
    ("hermes", "a <tool_cal", [Said("a <tool_cal")]),
    ("hermes", "<tool_call>", [Said("<tool_call>")]),
    ("hermes", tag("{broken") + " \n", [Said(tag("{broken") + " \n")]),
    ("hermes", tag('{"name": "f", "arguments": [1]}'), [Said(tag('{"name": "f", "arguments": [1]}'))]),
    ("hermes", tag('{"arguments": {}}'), [Said(tag('{"arguments": {}}'))]),
    ("hermes", tag('{"name": "", "arguments": {}}'), [Said(tag('{"name": "", "arguments": {}}'))]),
    ("hermes", tag("{broken") + tag(ONE), [Said(tag("{broken")), CALL]),
    ("hermes", "<tool_call>{broken " + tag(ONE), [Said("<tool_call>{broken"), CALL]),
    ("hermes", tag('{"name": "f') + tag(ONE), [Said(tag('{"name": "f')), CALL]),
    ("hermes", "</tool_call>", [Said("</tool_call>")]),
    (
        "hermes",
        tag('{"name": "f", "arguments": ' + '{"a":' * 70 + "1" + "}" * 71),
        [Said(tag('{"name": "f", "arguments": ' + '{"a":' * 70 + "1" + "}" * 71))],
    ),
    ("smollm2", f"<tool_call>[{ONE},\n{ONE}]</tool_call>", [CALL, CALL]),
    ("smollm2", "<tool_call>[]</tool_call>", []),
    ("smollm2", f"<tool_call>[{ONE}, 5]</tool_call>", [Said(f"<tool_call>[{ONE}, 5]</tool_call>")]),
    ("llama3_json", LLAMA, [CALL]),
    ("llama3_json", f"<|python_tag|>{LLAMA}", [CALL]),
    ("llama3_json", f"Sure: <|python_tag|>{LLAMA}; {LLAMA}", [Said("Sure:"), CALL, CALL]),
    ("llama3_json", f"I look it up.\n\n{LLAMA}\n", [Said("I look it up."), CALL]),
    ("llama3_json", f"{LLAMA}\nDone.", [CALL, Said("Done.")]),
    ("llama3_json", '{"type": "function", ' + LLAMA[1:], [CALL]),
    ("llama3_json", '{"answer": {"x": 1}}', [Said('{"answer": {"x": 1}}')]),
    ("llama3_json", '{"name": "Ann", "id": 5}\nthat is it', [Said('{"name": "Ann", "id": 5}\nthat is it')]),
    ("llama3_json", f"it is {LLAMA}", [Said(f"it is {LLAMA}")]),
    ("llama3_json", '{"name": "f", "parameters": {', [Said('{"name": "f", "parameters": {')]),
    ("llama3_json", '<|python_tag|>search.call(query="x")', [Said('<|python_tag|>search.call(query="x")')]),
    ("llama3_json", "a {b} \n {c", [Said("a {b} \n {c")]),
    ("llama3_json", " \n", [Said(" \n")]),
    ("llama3_json", f"{LLAMA};", [CALL]),
    ("none", f"x{tag(ONE)} ", [Said(f"x{tag(ONE)} ")]),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES, ids=range(len(CASES)))
def test_calls_and_words(name: str, text: str, expected: list[Piece]) -> None:
    assert read(reading(name).reader(), text) == expected
    assert read(reading(name).reader(), *text) == expected


PIECES = st.one_of(st.builds(Said, st.text()), st.builds(Thought, st.text()), st.just(CALL))


@given(st.lists(PIECES))
def test_pieces_are_merged_as_they_are_joined(pieces: list[Piece]) -> None:
    one_by_one: list[Piece] = []
    for piece in pieces:
        joined(one_by_one, piece)
    assert merged(pieces) == one_by_one


MANY = 50_000
"""Were any of it looked at anew with every mark, a test of so many would not end."""


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("<tool_call>", "<tool_call>" * MANY + "</tool_call>"),
        ("<tool_call>", "<tool_call>" * MANY),
        ("<tool_call>{", "<tool_call>{" * MANY + "</tool_call>"),
        ("<tool_call>", '<tool_call>{"a": "' + "<tool_call>" * MANY),
        ("</tool_call>", '<tool_call>{"a": "' + "</tool_call>" * MANY),
        ("</tool_call>", "<tool_call>" + "</tool_call>" * MANY),
    ],
    ids=range(6),
)
def test_marks_without_end_are_words_and_hold_nothing_up(mark: str, text: str, cut: bool) -> None:
    pieces = [text] if not cut else [one + mark for one in text.split(mark)]
    texts = pieces if not cut else [*pieces[:-1], pieces[-1].removesuffix(mark)]
    assert read(reading("hermes").reader(), *texts) == [Said(text)]


def test_a_mark_is_words_as_soon_as_no_call_can_follow() -> None:
    reader = reading("hermes").reader()
    assert reader.add("<tool_call>") == []
    assert merged(reader.add(" I ")) == [Said("<tool_call> I")]
    assert reader.add('<tool_call>{"name": "f"}') == []
    assert reader.add("</tool_call>") == [ToolCall("f", "{}")]


THOUGHTS: list[tuple[bool, str, list[Piece]]] = [
    (False, "<think>\nso\n\nit is\n</think>\n\nYes.", [Thought("so\n\nit is"), Said("Yes.")]),
    (False, "\n<think></think>Yes.\n", [Said("Yes.\n")]),
    (False, "Yes. <think>no</think>", [Said("Yes. <think>no</think>")]),
    (False, "  Yes.", [Said("  Yes.")]),
    (False, "<thi", [Said("<thi")]),
    (False, "<think>so it", [Thought("so it")]),
    (False, "<think>so </thin", [Thought("so </thin")]),
    (False, f"<think>a</think>\n{tag(ONE)}", [Thought("a"), CALL]),
    (False, f"<think>{tag(ONE)}</think>b", [Thought(tag(ONE)), Said("b")]),
    (True, "so\n</think>\n\nYes.", [Thought("so"), Said("Yes.")]),
    (True, "<think>\nso\n</think>\n\nYes.", [Thought("so"), Said("Yes.")]),
    (True, " ", []),
    (True, "<thi", [Thought("<thi")]),
]


@pytest.mark.parametrize(("opened", "text", "expected"), THOUGHTS, ids=range(len(THOUGHTS)))
def test_thoughts(opened: bool, text: str, expected: list[Piece]) -> None:
    how = reading("hermes", thinks=True, opened=opened)
    assert read(how.reader(), text) == expected
    assert read(how.reader(), *text) == expected


def test_a_thought_is_given_as_it_comes_and_is_told_apart() -> None:
    reader = reading("hermes", thinks=True).reader()
    seen = [(reader.add(text), reader.thinking) for text in ("<think>one", " two ", "</think>", "\nhello")]
    assert seen == [
        ([Thought("one")], True),
        ([Thought(" two")], True),
        ([], False),
        ([Said("hello")], False),
    ]


def test_words_do_not_wait_for_what_can_be_no_call() -> None:
    reader = reading("llama3_json").reader()
    assert reader.add('{"answer": ') == [Said('{"answer":')]
    assert reader.add("5, ") == [Said(" 5,")]
    tagged = reading("hermes").reader()
    assert tagged.add("a < b <tool_ca") == [Said("a < b")]
    assert tagged.add("r>") == [Said(" <tool_car>")]


PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "<think>", "</think>", "\n", " ", ";", "{", "}"),
        *(
            '"',
            "\\",
            "[",
            "]",
            ONE,
            LLAMA,
            f"[{ONE}]",
            '{"name": "',
            '"f", ',
            '"parameters": {}',
            "word",
            "é",
        ),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*FORMATS, "none"]),
    st.booleans(),
    st.booleans(),
    st.lists(PARTS, max_size=9).map("".join),
    st.data(),
)
@example("hermes", False, False, tag(ONE) + tag("{"), None)
def test_how_a_text_is_cut_changes_nothing_and_nothing_is_lost(
    name: str, thinks: bool, opened: bool, text: str, data: st.DataObject | None
) -> None:
    how = reading(name, thinks=thinks, opened=opened)
    whole = read(how.reader(), text)
    assert read(how.reader(), *text) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        ends = [0, *cuts, len(text)]
        assert read(how.reader(), *(text[a:b] for a, b in itertools.pairwise(ends))) == whole
    for piece in whole:
        if isinstance(piece, ToolCall):
            assert isinstance(json.loads(piece.arguments), dict)
            assert piece.arguments in text
    left = "".join(text.split())
    for piece in whole:  # what was read stands in the text, in order
        shown = piece.arguments if isinstance(piece, ToolCall) else piece.text
        if shown.strip():
            _, found, left = left.partition("".join(shown.split()))
            assert found, (piece, left)
    if not any(isinstance(piece, ToolCall) for piece in whole) and not thinks and "[]" not in text:
        assert whole == ([Said(text)] if text else [])
