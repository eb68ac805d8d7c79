"""The development model under structures, through the API: what agents ask for, on a road with a cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.engine.cpu_model import load_model
from shared.engine.fingerprint import fingerprint
from tests.support.live_client import TRACE
from tests.support.live_mesh import live_mesh
from tests.support.live_models import SharedModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.random_schemas import holds

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

SLOW: dict[str, Any] = {
    "line": {"chunk_ms": 40.0},
    "link": {"suspect_after": 20.0, "handshake_timeout": 20.0},
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Spain", "Italy"]},
        "large": {"type": "boolean"},
    },
    "required": ["name", "country", "large"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


async def test_json_and_calls(model_directory: Path) -> None:
    model = load_model(model_directory, "float32")
    shared = SharedModel(model_directory, model, fingerprint(model_directory), 32)
    shape = Shape(blocks=96, rate_mbit=20.0, rtt_ms=4.0, router=ROADS["one_shot"][1], **SLOW)
    async with live_mesh(shared, shape) as mesh:
        client = openai.AsyncOpenAI(
            base_url=f"{mesh.client.http.base_url}/v1", api_key="none", default_headers=TRACE
        )
        answer = await client.chat.completions.create(
            model="tested",
            messages=[{"role": "user", "content": "Describe Paris as JSON with name, country and large."}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "city", "schema": CITY, "strict": True},
            },
            temperature=0.8,
            seed=3,
            max_tokens=80,
        )
        assert answer.choices[0].finish_reason == "stop"
        assert holds(CITY, json.loads(answer.choices[0].message.content or ""))
        owners = (answer.model_extra or {})["pdd"]["tokens_by_owner"]
        assert owners.get("relay"), owners
        assert owners.get("main_decode"), owners
        called = await client.chat.completions.create(
            model="tested",
            messages=[{"role": "user", "content": "How will the weather be in Rome over the next days?"}],
            tools=[{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0.8,
            seed=4,
            max_tokens=80,
        )
        choice = called.choices[0]
        assert choice.finish_reason == "tool_calls", choice
        calls = choice.message.tool_calls or []
        assert len(calls) == 1
        call = calls[0]
        assert call.type == "function"
        assert call.function.name == "get_weather"
        assert holds(WEATHER, json.loads(call.function.arguments))
        await client.close()
