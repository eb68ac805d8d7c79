"""What a grammar allows depends on the ids alone; what cannot be compiled or followed says so, in bounds."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from shared.engine.grammar import MOST_BYTES, Grammars, Walk, fault_of, load_grammars
from shared.errors import BadGrammar, ModelError
from tests.support.random_schemas import an_object, holds
from tests.support.small_tokenizer import EOS, small_tokenizer

ENDS = (EOS, 0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    marks = [("<|tag|>", True), ("</x>", False)]
    return small_tokenizer(Path(tmp_path_factory.mktemp("grammar")) / "model", marks=marks)


@pytest.fixture
def grammars(directory: Path) -> Grammars:
    return load_grammars(directory)


def ids_in(mask: bytes) -> list[int]:
    return [at for at in range(len(mask) * 8) if mask[at >> 3] >> (at & 7) & 1]


def schema(rule: dict[str, Any]) -> str:
    inner = {**rule, "x-guidance": {"whitespace_pattern": "[ ]{0,2}"}}
    return json.dumps({"grammars": [{"json_schema": inner}]})


@pytest.mark.parametrize("seed", range(12))
def test_masks_depend_on_the_ids_alone(grammars: Grammars, seed: int) -> None:
    """Followed step by step, caught up in one step, or begun anew: the same; and what comes of it fits."""
    rnd = random.Random(seed)
    rule = an_object(rnd)
    steady, written = Walk(grammars, schema(rule)), list[int]()
    jumps = Walk(grammars, schema(rule))
    while len(written) < 300:
        mask = steady.allowed(written, ENDS)
        assert Walk(grammars, schema(rule)).allowed(written, ENDS) == mask
        if rnd.random() < 0.2:
            assert jumps.allowed(written, ENDS) == mask
        drawn = rnd.choice(ids_in(mask))
        if drawn in ENDS:
            break
        written.append(drawn)
    else:
        pytest.fail("no end")
    text = text_of(grammars, written)
    assert holds(rule, json.loads(text)), text


def text_of(grammars: Grammars, written: list[int]) -> str:
    return bytes(grammars._tokenizer.decode_bytes(written)).decode(errors="replace")


def test_ids_that_were_replaced_are_followed_anew(grammars: Grammars) -> None:
    walk = Walk(grammars, 'start: "a" | "bc"')
    first = ids_in(walk.allowed((), ENDS))
    a, b = first[0], first[1]
    assert ids_in(walk.allowed((a,), ENDS)) == [0, EOS]
    (c,) = ids_in(walk.allowed((b,), ENDS))
    assert ids_in(walk.allowed((b, c), ENDS)) == [0, EOS]
    assert ids_in(walk.allowed((a,), ENDS)) == [0, EOS]
    assert ids_in(walk.allowed((), ENDS)) == first


def test_only_stop_ids_end(grammars: Grammars) -> None:
    """The model's own end, too, only where it is one of them."""
    walk = Walk(grammars, "start: /a{1,2}/")
    assert EOS not in ids_in(walk.allowed((), (EOS, 7)))
    (a,) = set(ids_in(walk.allowed((), ()))) & {at for at in range(400) if text_of(grammars, [at]) == "a"}
    assert {EOS, 7} <= set(ids_in(walk.allowed((a,), (EOS, 7))))
    assert EOS not in ids_in(walk.allowed((a,), (7,)))
    assert ids_in(walk.allowed((a, a), (EOS, 7))) == [EOS, 7]
    assert ids_in(walk.allowed((a, a), (EOS, 10**9))) == [EOS]


def test_ids_that_leave_the_grammar_are_an_error(grammars: Grammars) -> None:
    walk = Walk(grammars, 'start: "ab"')
    first = ids_in(walk.allowed((), ENDS))[0]
    wrong = next(at for at in range(3, 200) if at != first)
    with pytest.raises(BadGrammar, match="follow"):
        walk.allowed((wrong,), ENDS)


def test_marks(grammars: Grammars) -> None:
    assert grammars.ends == (EOS,)
    assert grammars.is_mark(0)
    assert not grammars.is_mark(50)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Empty"),
        ("start: x", "unknown name"),
        ("{", "EOF"),
        ('start: ""', "nothing can be written"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ("x" * (MOST_BYTES + 1), "bytes"),
        (schema({"not": {}}), "not"),
        (schema({"$ref": "https://example.com/x"}), "cannot be compiled"),
        (schema({"properties": {f"p{at}": {"type": "string"} for at in range(3000)}}), "too big"),
    ],
)
def test_what_cannot_be_compiled(grammars: Grammars, text: str, said: str) -> None:
    began = time.monotonic()
    with pytest.raises(BadGrammar, match=said) as error:
        grammars.compiled(text)
    assert len(str(error.value)) < 500
    assert grammars.known(text)  # a second one is refused at once
    with pytest.raises(BadGrammar):
        grammars.compiled(text)
    assert time.monotonic() - began < 20


def test_a_fault_without_a_vocabulary() -> None:
    assert fault_of(schema({"type": "object"})) == ""
    assert "not" in fault_of(schema({"not": {}}))


def test_as_many_are_kept_as_may_be(directory: Path) -> None:
    inner = load_grammars(directory)
    grammars = Grammars(inner._tokenizer, kept=2)
    for text in ("start: /a/", "start: /b/", "start: /a/", "start: /c/"):
        grammars.compiled(text)
    assert [grammars.known(f"start: /{sign}/") for sign in "abc"] == [True, False, True]


def test_one_that_is_asked_for_at_every_step_is_kept_though_many_others_come(directory: Path) -> None:
    """A long answer's grammar was compiled before those of all short ones that came and went meanwhile."""
    inner = load_grammars(directory)
    grammars = Grammars(inner._tokenizer, kept=4)
    grammars.compiled("start: /long/")
    for at in range(12):
        grammars.compiled(f"start: /short{at}/")
        assert grammars.known("start: /long/")


def test_a_grammar_that_takes_too_much_to_follow_is_an_error(grammars: Grammars) -> None:
    """Its limits are the library's own; no step waits for it."""
    many = " | ".join(f'"a{at}"' for at in range(4000))
    walk = Walk(grammars, f"start: ({many})")
    first = ids_in(walk.allowed((), ENDS))
    with pytest.raises(BadGrammar, match="cannot be followed"):
        walk.allowed((first[0],), ENDS)


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 10}')
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_grammars(tmp_path)
