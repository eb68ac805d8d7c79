"""Routes around generation: keys, models, health, readiness, metrics, tokenize, unknown paths."""

import pytest

from services.router.front.keys import Keys, Tenant, read_keys
from services.router.front.tokens import Tokenizer
from shared.errors import BadKey, ConfigError, Overloaded, RequestFailed, Unavailable
from tests.support.fake_generator import FakeGenerator, breaks, says
from tests.support.front_door import MODEL, Door, Wire, ask

KEYS = "# who may use this\nacme  key-of-acme\nacme second-of-acme\nbeta key-of-beta # trial\n"


@pytest.fixture
def door(tokenizer: Tokenizer) -> Door:
    return Door(tokenizer, FakeGenerator(says(5)))


async def test_keys_name_tenants_and_tenants_share_no_salt(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, FakeGenerator(says(5)), keys=read_keys(KEYS))
    for header in (
        None,
        "",
        "Bearer",
        "Bearer nobody",
        "Basic key-of-acme",
        "Bearer key-of-acm",
        "key-of-acme",
    ):
        headers = {} if header is None else {"authorization": header}
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            response = await door.post(path, ask(), **headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        async with door.client(**headers) as client:
            assert (await client.get("/v1/models")).status_code == 401
    assert not door.generator.streams
    for key, fields in (
        ("key-of-acme", {}),
        ("second-of-acme", {}),
        ("key-of-beta", {}),
        ("key-of-beta", {"cache_salt": "x"}),
        ("key-of-acme", {"cache_salt": "x"}),
    ):
        response = await door.post("/v1/chat/completions", ask(**fields), authorization=f"bearer {key}")
        assert response.status_code == 200
    salts = [request.salt for request in door.generator.requests]
    assert salts[0] == salts[1]
    assert len({*salts}) == 4
    assert all(len(salt) == 16 for salt in salts)
    assert [request.tenant for request in door.generator.requests] == ["acme", "acme", "beta", "beta", "acme"]


async def test_open_endpoints_need_no_key(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, keys=read_keys(KEYS))
    for path in ("/health", "/ready", "/metrics"):
        assert (await door.get(path)).status_code == 200


def test_salts() -> None:
    assert Tenant("").salt(None) == b""
    assert Tenant("").salt("a") != Tenant("a").salt(None)
    assert Tenant("a").salt("b") != Tenant("ab").salt("")
    assert not Keys()
    with pytest.raises(BadKey):
        read_keys(KEYS).tenant("Bearer ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no key"),
        ("acme", "line 1"),
        ("acme a b", "3 words"),
        ("acme short", "8 characters"),
        ("a samekey-1\nb samekey-1", "line 2"),
    ],
)
def test_bad_key_files(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_keys(text)


async def test_models(door: Door) -> None:
    listed = (await door.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == [MODEL]
    assert listed["data"][0]["max_model_len"] == 4096
    assert (await door.get(f"/v1/models/{MODEL}")).json() == listed["data"][0]
    missing = await door.get("/v1/models/org/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_health_and_readiness(door: Door) -> None:
    assert (await door.get("/health")).json() == {"status": "ok", "reason": ""}
    assert (await door.get("/ready")).status_code == 200
    door.sick = "no block can ever be had"
    door.state = {"ready": False, "pipelines": {"MD": "no main decode worker"}}
    assert (await door.get("/health")).status_code == 503
    ready = await door.get("/ready")
    assert ready.status_code == 503
    assert "no main decode worker" in ready.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("PUT", "/v1/responses/abc", 405),
        ("POST", "/v1/conversations", 501),
        ("POST", "/v1/embeddings", 501),
        ("POST", "/v1/audio/speech", 501),
        ("POST", "/score", 501),
        ("POST", "/scores", 404),
    ],
)
async def test_unserved_paths_answer_in_json(door: Door, method: str, path: str, status: int) -> None:
    async with door.client() as client:
        response = await client.request(method, path, json={} if method == "POST" else None)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    if status == 405:
        assert response.headers["allow"]


async def test_a_405_names_all_that_the_path_takes(door: Door) -> None:
    async with door.client() as client:
        for method, path, allow in (
            ("PUT", "/v1/responses/x", "DELETE, GET, HEAD"),
            ("GET", "/v1/completions", "POST"),
            ("POST", "/health", "GET, HEAD"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allow)


async def test_tokenize_and_detokenize(door: Door, tokenizer: Tokenizer) -> None:
    text = "hello 😀<|im_end|>"
    answer = (await door.post("/tokenize", {"prompt": text, "return_token_strs": True})).json()
    assert answer["tokens"] == tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 4096
    assert (await door.post("/detokenize", {"tokens": answer["tokens"]})).json() == {"prompt": text}
    chat = (await door.post("/tokenize", {"messages": ask()["messages"]})).json()
    await door.chat()
    assert chat["tokens"] == door.generator.requests[0].ids
    for bad in ({}, {"prompt": "a", "messages": []}):
        assert (await door.post("/tokenize", bad)).json()["error"]["param"] == "prompt"
    assert (await door.post("/detokenize", {"tokens": [99999]})).json()["error"]["param"] == "tokens[0]"


async def test_metrics_count_what_happened(door: Door) -> None:
    await door.chat()
    await door.chat(temperature=-1)
    await door.events("/v1/chat/completions", ask())
    text = (await door.get("/metrics")).text
    assert 'pdd_http_requests_total{endpoint="/v1/chat/completions",status="200"} 2.0' in text
    assert 'pdd_http_requests_total{endpoint="/v1/chat/completions",status="400"} 1.0' in text
    assert door.metric("pdd_http_generations_total", ended="finished") == 2
    assert door.metric("pdd_http_completion_tokens_total") == 4
    assert door.metric("pdd_http_prompt_tokens_total") == 2 * len(door.generator.requests[0].ids)
    assert door.metric("pdd_http_running") == 0
    assert door.metric("pdd_http_ttft_seconds_count") == 2


async def test_a_streams_status_is_the_one_that_its_client_gets(tokenizer: Tokenizer) -> None:
    def counted(door: Door, status: int, endpoint: str = "/v1/chat/completions") -> float:
        return door.metric("pdd_http_requests_total", endpoint=endpoint, status=str(status))

    for error in (Overloaded("full", 3.0), Unavailable("no worker", 1.0), RequestFailed("lost")):
        door = Door(tokenizer, FakeGenerator(breaks(error)))
        response = await door.chat(stream=True)
        assert counted(door, response.status_code) == 1
        assert counted(door, 200) == 0

    door = Door(tokenizer, FakeGenerator())
    wire = Wire(door.app, ask(stream=True))
    await door.generator.started()
    wire.leave()
    await wire.end()
    assert (counted(door, 499), counted(door, 200)) == (1, 0)


async def test_a_crash_is_a_json_500(tokenizer: Tokenizer) -> None:
    def crash(_request: object) -> list[object]:
        raise ZeroDivisionError("inside")

    door = Door(tokenizer)
    door.generator.script = crash  # type: ignore[assignment]
    response = await door.chat()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal"
    assert "inside" not in response.text
    assert door.metric("pdd_http_requests_total", endpoint="crashed", status="500") == 1


def test_renewed_keys_are_accepted_and_old_ones_no_longer() -> None:
    keys = Keys([("ann", "old-key-of-ann")])
    keys.replace(Keys([("ann", "new-key-of-ann"), ("bob", "a-key-of-bob")]))
    assert keys.tenant("Bearer new-key-of-ann").name == "ann"
    assert keys.tenant("Bearer a-key-of-bob").name == "bob"
    with pytest.raises(BadKey):
        keys.tenant("Bearer old-key-of-ann")
