"""What clients ask an answer to look like becomes the grammar that decoders get: every API, every field."""

from pathlib import Path
from typing import Any

import pytest

from services.router.front.tokens import Tokenizer, load_tokenizer
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import Door, ask
from tests.support.grammar_reader import GrammarReader
from tests.support.small_tokenizer import EOS, small_tokenizer
from tests.support.tool_templates import LLAMA, QWEN, SMOLLM

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
PARIS = '{"city": "Paris", "degrees": 5}'
WEATHER = {"name": "get_weather", "parameters": SCHEMA, "strict": True}
PLAIN = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}
THINK = "{% if false %}<think></think>{% endif %}"
MARKS = [("<tool_call>", False), ("</tool_call>", False), ("<|python_tag|>", True)]
TEMPLATES = {"hermes": QWEN, "llama3_json": LLAMA, "smollm2": SMOLLM, "thinks": THINK + QWEN}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = Path(tmp_path_factory.mktemp("structure"))
    made = {
        name: small_tokenizer(where / name, template=template, marks=MARKS)
        for name, template in TEMPLATES.items()
    }
    special = [(text, True) for text, _ in MARKS]
    return made | {"special": small_tokenizer(where / "special", template=QWEN, marks=special)}


@pytest.fixture(scope="module")
def tokenizers(directories: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: load_tokenizer(directory) for name, directory in directories.items()}


class Seen:
    """The grammar that a request's decoders were given."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self._reader = GrammarReader(directory, tokenizer.facts.vocab_size, EOS)
        self._tokenizer = tokenizer
        self.sampling: Any = None

    async def post(self, path: str, body: dict[str, Any]) -> None:
        generator = FakeGenerator(says(*self._tokenizer.encode("x")))
        response = await Door(self._tokenizer, generator).post(path, body)
        assert response.status_code == 200, response.text
        self.sampling = generator.streams[0].request.sampling

    async def chat(self, **fields: Any) -> None:
        await self.post("/v1/chat/completions", ask(**fields))

    def reads(self, text: str) -> bool:
        return self._reader.reads(self.sampling.grammar, text)

    def begins(self, text: str) -> bool:
        return self._reader.begins(self.sampling.grammar, text)


@pytest.fixture
def seen(directories: dict[str, Path], tokenizers: dict[str, Tokenizer]) -> Any:
    return lambda name="hermes": Seen(directories[name], tokenizers[name])


def tools(*functions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": function} for function in functions]


FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
FORMS: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("json_object", {"response_format": {"type": "json_object"}}, ['{"a": [1, {}]}', "{}"], ["[]", "a", "{"]),
    ("json_schema", {"response_format": FORMAT}, [PARIS, '{"city":""}'], ["{}", '{"city": 1}', PARIS + " "]),
    ("guided_json", {"guided_json": SCHEMA}, [PARIS], ["{}"]),
    ("as a text", {"guided_json": '{"type": "boolean"}'}, ["true", "false"], ["1"]),
    ("guided_regex", {"guided_regex": "[a-c]+/\\d{2}"}, ["abc/12"], ["abc/1", "d/12"]),
    ("guided_choice", {"guided_choice": ["yes", 'n"o/', "ye"]}, ["yes", 'n"o/', "ye"], ["y", "no"]),
    ("guided_grammar", {"guided_grammar": 'start: "a" b\nb: "b"+'}, ["ab", "abbb"], ["a", "b"]),
    ("gbnf", {"guided_grammar": 'root ::= "a" [0-9]+'}, ["a1", "a123"], ["a", "1"]),
    ("structured json", {"structured_outputs": {"json": SCHEMA}}, [PARIS], ["{}"]),
    ("structured regex", {"structured_outputs": {"regex": "a|bb"}}, ["a", "bb"], ["b"]),
    ("structured choice", {"structured_outputs": {"choice": ["é", "b"]}}, ["é", "b"], ["e"]),
    ("structured grammar", {"structured_outputs": {"grammar": "start: /x+/"}}, ["xx"], ["y"]),
    ("structured object", {"structured_outputs": {"json_object": True}}, ["{}"], ["[]"]),
    (
        "structural_tag",
        {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<fn=a>", "schema": SCHEMA, "end": "</fn>"}],
                "triggers": ["<fn="],
            }
        },
        ["just words", f"see <fn=a>{PARIS}</fn> and"],
        ["see <fn=b>{}</fn>", "see <fn=a>{}</fn>"],
    ),
]


@pytest.mark.parametrize(("fields", "good", "bad"), [row[1:] for row in FORMS], ids=[row[0] for row in FORMS])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_forms(seen: Any, path: str, fields: dict[str, Any], good: list[str], bad: list[str]) -> None:
    one = seen()
    body = ask(**fields) if "chat" in path else {"prompt": "a", **fields}
    await one.post(path, body)
    assert [text for text in good if not one.reads(text)] == []
    assert [text for text in bad if one.reads(text)] == []


async def test_without_a_form_there_is_no_grammar(seen: Any) -> None:
    nothing: list[dict[str, Any]] = [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": None, "guided_json": None},
        {"tools": tools(PLAIN)},
        {"tools": tools(WEATHER), "tool_choice": "none"},
    ]
    for fields in nothing:
        one = seen()
        await one.chat(**fields)
        assert one.sampling.grammar == "", fields


async def test_white_space_in_json_is_bounded(seen: Any) -> None:
    one = seen()
    await one.chat(response_format={"type": "json_object"})
    assert one.reads('{\n        "a": 1,\n        "b": 2\n}')
    assert not one.begins("{" + " " * 41)


async def test_the_other_apis(seen: Any) -> None:
    inner = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    plain = {"type": "json_schema", "schema": SCHEMA}
    turn = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": "a", "text": {"format": inner}}),
        ("/v1/messages", {**turn, "output_config": {"format": plain}}),
        ("/v1/messages", {**turn, "output_format": plain}),
    ]
    for path, body in bodies:
        one = seen()
        await one.post(path, body)
        assert one.reads(PARIS), body
        assert not one.begins("words"), body


async def test_responses_repeat_the_form(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["hermes"]
    door = Door(tokenizer, FakeGenerator(says(*tokenizer.encode("x"))))
    asked = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    answer = (await door.post("/v1/responses", {"input": "a", "text": {"format": asked}})).json()
    assert answer["text"]["format"] == asked


CALLS = {
    "hermes": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        "\n",
    ),
    "llama3_json": (
        f'{{"name": "get_weather", "parameters": {PARIS}}}',
        '{"name": "get_weather", "parameters": {}}',
        '{"name": "f", "parameters": {"x": 1}}',
        "; ",
    ),
    "smollm2": (
        f'<tool_call>[{{"name": "get_weather", "arguments": {PARIS}}}]</tool_call>',
        '<tool_call>[{"name": "get_weather", "arguments": {}}]</tool_call>',
        '<tool_call>[\n{"name": "f", "arguments": {"x": 1}}\n]</tool_call>',
        None,
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_required_calls(seen: Any, name: str) -> None:
    good, bad, other, between = CALLS[name]
    one = seen(name)
    await one.chat(tools=tools(WEATHER, PLAIN), tool_choice="required")
    assert one.reads(good)
    assert one.reads(other)
    assert not one.reads(bad)
    assert not one.begins("Words")
    if between is not None:
        assert one.reads(good + between + other)
    else:
        assert one.reads(good.removesuffix("]</tool_call>") + ", " + other.removeprefix("<tool_call>[\n"))
    await one.chat(tools=tools(WEATHER, PLAIN), tool_choice="required", parallel_tool_calls=False)
    assert one.reads(good)
    assert not one.begins(good + (between or "") + other[:20])


@pytest.mark.parametrize("name", CALLS)
async def test_a_named_tool_is_called_once(seen: Any, name: str) -> None:
    good, bad, other, between = CALLS[name]
    one = seen(name)
    choice = {"type": "function", "function": {"name": "get_weather"}}
    await one.chat(tools=tools(PLAIN, WEATHER), tool_choice=choice)
    assert one.reads(good)
    assert not one.reads(bad)
    assert not one.begins(other[:40])
    assert not one.begins(good + (between or "\n") + good)


@pytest.mark.parametrize("name", CALLS)
async def test_strict_tools_may_be_called_or_not(seen: Any, name: str) -> None:
    good, bad, other, between = CALLS[name]
    one = seen(name)
    await one.chat(tools=tools(WEATHER, PLAIN))
    for text in ("Words { } alone", good, other, "for (;;) {\n  a();\n}"):
        assert one.reads(text), text
    assert not one.reads(bad)
    if name != "llama3_json":
        assert one.reads(f"Let me see.\n{good}\nand {other}")
        assert not one.reads(f"Let me see.\n{bad}")
        assert not one.reads(f"{good}\n{bad}")
    else:
        assert one.reads(good + str(between) + other)
        assert not one.reads(f"Let me see.\n{bad}")


async def test_marks_that_are_special_tokens(seen: Any) -> None:
    good, bad, other, _ = CALLS["hermes"]
    one = seen("special")
    await one.chat(tools=tools(WEATHER, PLAIN), tool_choice="required")
    assert one.reads(f"{good}\n{other}")
    assert not one.reads(bad)
    await one.chat(tools=tools(WEATHER, PLAIN))
    assert one.reads(f"words {good} words")
    assert one.reads("words")
    assert not one.reads(f"words {bad}")


async def test_allowed_tools(seen: Any) -> None:
    good, _bad, other, _ = CALLS["hermes"]
    one = seen()
    listed = [{"type": "function", "function": {"name": "f"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": listed}}
    await one.chat(tools=tools(WEATHER, PLAIN), tool_choice=choice)
    assert one.reads(other)
    assert one.reads("words")
    assert not one.reads(good)
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    await one.chat(tools=tools(WEATHER, PLAIN), tool_choice=flat)
    assert one.reads(other)
    assert not one.begins("words")


async def test_tools_in_the_other_apis(seen: Any) -> None:
    good, _bad, other, _ = CALLS["hermes"]
    flat = {"type": "function", **WEATHER}
    shaped = {"name": "get_weather", "input_schema": SCHEMA, "strict": True}
    turn = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "tools": [shaped]}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": "a", "tools": [flat], "tool_choice": "required"}),
        (
            "/v1/responses",
            {"input": "a", "tools": [flat], "tool_choice": {"type": "function", "name": "get_weather"}},
        ),
        ("/v1/messages", {**turn, "tool_choice": {"type": "any"}}),
        ("/v1/messages", {**turn, "tool_choice": {"type": "tool", "name": "get_weather"}}),
    ]
    for path, body in bodies:
        one = seen()
        await one.post(path, body)
        assert one.reads(good), body
        assert not one.begins("words"), body
    one = seen()
    await one.post("/v1/messages", turn)
    assert one.reads("words")
    assert not one.reads(other)


async def test_a_form_beside_tools(seen: Any) -> None:
    for name, (good, bad, _other, _) in CALLS.items():
        one = seen(name)
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": ["z"]}}}
        await one.chat(tools=tools(WEATHER, PLAIN), response_format=form)
        assert one.reads(good), name
        assert one.reads('{"z": 1}'), name
        assert not one.reads(bad), name
        assert not one.begins("words"), name


async def test_a_thought_comes_first(seen: Any) -> None:
    one = seen("thinks")
    await one.chat(response_format=FORMAT)
    assert one.reads(PARIS)
    assert one.reads(f"<think>\nIs it {{}} or []?\n</think>\n\n{PARIS}")
    assert not one.begins("Is it {}")
    assert not one.reads("<think>a</think>{}")
    await one.chat(tools=tools(WEATHER, PLAIN), tool_choice="required")
    assert one.reads(f"<think>no</think>{CALLS['hermes'][0]}")
    assert one.reads(CALLS["hermes"][0])
    await one.chat(tools=tools(WEATHER, PLAIN))
    assert one.reads("<think>a call or not</think>words")
    assert not one.reads(f"<think>a call or not</think>{CALLS['hermes'][1]}")


async def test_a_thought_that_the_prompt_opens(tmp_path: Path) -> None:
    template = QWEN + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}{# </think> #}"
    directory = small_tokenizer(tmp_path / "opened", template=template, marks=MARKS)
    one = Seen(directory, load_tokenizer(directory))
    await one.chat(response_format=FORMAT)
    assert one.reads(f"hm, {PARIS}?</think>\n{PARIS}")
    assert not one.reads(PARIS)
    assert not one.reads("hm</think>words")


BAD: list[tuple[dict[str, Any], str, str]] = [
    (
        {"guided_json": {"properties": {"a": {"items": {"not": {}}}}}},
        "guided_json.properties.a.items.not",
        "not",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"format": "color"}}}},
        "response_format.json_schema.schema.format",
        "color",
    ),
    ({"guided_json": {"anyOf": [{}, {"if": {}, "then": {}}]}}, "guided_json.anyOf[1].if", "if"),
    (
        {"guided_json": {"$defs": {"x": {"pattern": "(?=a)"}}, "$ref": "#/$defs/x"}},
        "guided_json.$defs.x.pattern",
        "",
    ),
    ({"guided_json": {"properties": {"a": {"$ref": "https://a.b/c"}}}}, "guided_json.properties.a.$ref", ""),
    ({"guided_json": {"type": "text"}}, "guided_json.type", "text"),
    ({"guided_json": {"type": "array", "minItems": 3, "maxItems": 2}}, "guided_json", "Unsatisfiable"),
    ({"guided_json": "{"}, "guided_json", "no JSON schema"),
    ({"guided_json": 5}, "guided_json", "expected"),
    ({"guided_regex": "(a"}, "guided_regex", ""),
    ({"guided_regex": ""}, "guided_regex", "length"),
    ({"guided_choice": []}, "guided_choice", "length"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar", "nothing"),
    ({"guided_grammar": "???"}, "guided_grammar", ""),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "guided_json"),
    (
        {"structured_outputs": {"json": {}, "regex": "a"}},
        "structured_outputs.regex",
        "structured_outputs.json",
    ),
    ({"structured_outputs": {"nonsense": 1}}, "structured_outputs.nonsense", "unknown"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": "json"}, "response_format", ""),
    (
        {
            "response_format": {
                "type": "structural_tag",
                "triggers": ["<"],
                "structures": [{"begin": "a", "schema": {}, "end": ""}],
            }
        },
        "response_format.structures[0].begin",
        "triggers",
    ),
    ({"guided_choice": ["a"], "ignore_eos": True, "stop_token_ids": [5]}, "stop_token_ids", "ignore_eos"),
]


@pytest.mark.parametrize(("fields", "param", "said"), BAD, ids=[row[1] for row in BAD])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_cannot_be_kept_to_is_refused_by_place(
    tokenizers: dict[str, Tokenizer], path: str, fields: dict[str, Any], param: str, said: str
) -> None:
    door = Door(tokenizers["hermes"])
    response = await door.post(path, ask(**fields) if "chat" in path else {"prompt": "a", **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert said in error["message"]
    assert not door.generator.streams


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BIG: list[tuple[str, Any]] = [
    ("deep", {"guided_json": nested(200)}),
    ("wide", {"guided_json": {"properties": {f"p{at}": {"type": "string"} for at in range(4000)}}}),
    ("long", {"guided_json": {"enum": ["x" * 200_000]}}),
    ("parentheses", {"guided_grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000}),
    ("pattern", {"guided_regex": "(" * 20_000 + "a" + ")" * 20_000}),
]


@pytest.mark.parametrize("fields", [row[1] for row in BIG], ids=[row[0] for row in BIG])
async def test_what_is_too_much_is_refused(tokenizers: dict[str, Tokenizer], fields: dict[str, Any]) -> None:
    door = Door(tokenizers["hermes"])
    response = await door.chat(fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("guided_")
    assert len(response.text) < 2000


async def test_a_tool_that_is_not_strict_is_kept_to_as_far_as_can_be(seen: Any) -> None:
    odd = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "not": {"const": 5}},
            "b": {"type": "string", "format": "odd"},
        },
        "required": ["a"],
    }
    one = seen()
    await one.chat(tools=tools({"name": "f", "parameters": odd}), tool_choice="required")
    call = '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'
    assert one.reads(call.format('{"a": 5, "b": "x"}'))
    assert not one.reads(call.format('{"a": "5"}'))
    remote = {"type": "object", "properties": {"a": {"$ref": "https://a.b/c"}}}
    await one.chat(tools=tools({"name": "f", "parameters": remote}), tool_choice="required")
    assert one.reads(call.format('{"a": 5}'))
    await one.chat(tools=tools({"name": "f"}), tool_choice="required")
    assert one.reads(call.format("{}"))
    assert not one.reads(call.format('{"a": 1}'))


async def test_what_a_schema_says_to_readers_is_not_carried(seen: Any) -> None:
    inner = {"type": "string", "description": "long", "title": "t", "default": "a", "enum": ["a", "b"]}
    rule = {"properties": {"title": inner}, "required": ["title"], "description": "d", "type": "object"}
    one = seen()
    await one.chat(guided_json=rule)
    assert one.reads('{"title": "a"}')
    assert not one.reads('{"title": "c"}')
    assert "long" not in one.sampling.grammar


async def test_ends(seen: Any) -> None:
    one = seen()
    await one.chat(guided_choice=["a"], max_tokens=50, min_tokens=3, stop_token_ids=[7])
    assert (one.sampling.min_tokens, one.sampling.stop_ids) == (3, (EOS, 7))
    await one.chat(guided_choice=["a"], max_tokens=50, ignore_eos=True)
    assert (one.sampling.min_tokens, one.sampling.stop_ids) == (50, (EOS,))
    await one.chat(max_tokens=50, ignore_eos=True)
    assert (one.sampling.min_tokens, one.sampling.stop_ids) == (0, ())
