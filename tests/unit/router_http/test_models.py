"""Several models behind one front door: which a request means, and that nothing of one shows in another."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.router.front.tokens import Tokenizer, load_tokenizer
from tests.support.fake_generator import says
from tests.support.front_door import MODEL, Door, ask
from tests.support.small_tokenizer import small_tokenizer

OTHER = "{% for message in messages %}{{ '[' + message['content'] + ']' }}{% endfor %}"
PLACES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ("/v1/completions", {"prompt": "hello"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]}),
    ("/v1/responses", {"input": "hello"}),
    ("/tokenize", {"prompt": "hello"}),
    ("/detokenize", {"tokens": [5]}),
]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(small_tokenizer(Path(tmp_path_factory.mktemp("other")) / "model", template=OTHER))


@pytest.fixture
def door(tokenizer: Tokenizer, other: Tokenizer) -> Door:
    door = Door(tokenizer, others={"large": other})
    door.generator.script = says(70, 71)
    return door


async def test_all_models_are_listed_and_each_has_a_card(door: Door) -> None:
    listed = (await door.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == [MODEL, "large"]
    assert (await door.get("/v1/models/large")).json() == listed[1]
    assert (await door.get("/v1/models/other")).status_code == 404


async def test_each_model_has_its_own_template_and_answers_in_its_name(door: Door) -> None:
    for name, tokenizer in ((MODEL, door.tokenizer), ("large", door.others["large"])):
        answer = (await door.chat(model=name, max_tokens=5)).json()
        assert answer["model"] == name
        template = tokenizer.facts.template
        assert template is not None
        text = template.render(ask()["messages"], add_generation_prompt=True)
        request = door.generator.requests[-1]
        assert request.ids == tokenizer.encode(text, add_special=False)
        assert request.model == name


@pytest.mark.parametrize(("path", "body"), PLACES)
async def test_a_model_must_be_named_where_there_are_several(
    door: Door, path: str, body: dict[str, object]
) -> None:
    missing = await door.post(path, body)
    assert missing.status_code == 400
    assert "model: required here; 'small', 'large' are served" in missing.text
    assert (await door.post(path, body | {"model": "large"})).status_code == 200
    unknown = await door.post(path, body | {"model": "huge"})
    assert unknown.status_code == 404
    error = unknown.json()["error"]
    assert error["message"].startswith("model: 'huge' is not served here; 'small', 'large' are")
    if path.startswith("/v1/messages"):
        assert error["type"] == "not_found_error"
    else:
        assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_answers_of_one_model_are_not_spliced_into_prompts_of_another(door: Door) -> None:
    text = "good hello world"
    for model in (MODEL, "large"):
        await door.post("/v1/completions", {"model": model, "prompt": text, "max_tokens": 2})
    answer = text + door.tokenizer.decode([70, 71])
    results = {}
    for model in (MODEL, "large"):
        await door.post("/v1/completions", {"model": model, "prompt": answer, "max_tokens": 2})
        results[model] = door.generator.requests[-1].ids
    assert door.metric("pdd_splice_turns") >= 2
    fresh = Door(door.others["large"])
    fresh.generator.script = says(70, 71)
    await fresh.post("/v1/completions", {"prompt": text, "max_tokens": 2})
    await fresh.post("/v1/completions", {"prompt": answer, "max_tokens": 2})
    assert results["large"] == fresh.generator.requests[-1].ids


async def test_a_conversation_goes_on_with_another_model(door: Door) -> None:
    first = (await door.post("/v1/responses", {"model": MODEL, "input": "hello"})).json()
    body = {"model": "large", "input": "more", "previous_response_id": first["id"]}
    second = await door.post("/v1/responses", body)
    assert second.status_code == 200
    assert second.json()["model"] == "large"
    assert (await door.get(f"/v1/responses/{first['id']}")).json() == first
