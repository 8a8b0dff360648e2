"""Adapters over HTTP: each is served as a model of its own by the engine of its base model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.adapters import linear_shapes, write_adapter
from tests.server.conftest import serving

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.config import EngineConfig
from aethermind.engine.process import EngineProcess
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.server.app import create_app
from aethermind.server.served_model import ServedModel

PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
LIMITS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 128}


@pytest.fixture(scope="module")
def adapters(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    shapes = linear_shapes(json.loads((runtime.models.locate("demo") / "config.json").read_text()))
    root = tmp_path_factory.mktemp("adapters")
    return {name: str(write_adapter(root / name, shapes, seed=seed, size=0.3)) for seed, name in enumerate("xy")}


@pytest.fixture(scope="module")
def adapted(runtime: Runtime, adapters: dict[str, str]) -> Iterator[LLM]:
    with LLM(runtime=runtime, adapters=adapters, **LIMITS) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(adapted: LLM) -> dict[str, str]:
    """The answers of the model and of each adapter, generated before a server runs the engine."""
    names = ["demo", "x", "y"]
    outputs = adapted.generate([PROMPT] * 3, GREEDY, adapter=[None, "x", "y"])
    return {name: output.outputs[0].text for name, output in zip(names, outputs, strict=True)}


@pytest.fixture(scope="module", params=["inprocess", "process"])
def address(
    request: pytest.FixtureRequest, adapted: LLM, adapters: dict[str, str], runtime: Runtime, expected: dict[str, str]
) -> Iterator[str]:
    assert len(set(expected.values())) == 3
    is_inprocess = request.param == "inprocess"
    engine = (
        adapted if is_inprocess else EngineProcess("demo", EngineConfig(adapters=adapters, **LIMITS), runtime=runtime)
    )
    with serving(engine) as address:  # type: ignore[arg-type]
        yield address


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30) as client:
        yield client


def test_each_adapter_is_listed_as_a_model_with_a_parent(client: openai.OpenAI, http: httpx.Client) -> None:
    listed = client.models.list().data
    assert [(one.id, one.model_extra["parent"]) for one in listed if one.model_extra] == [
        ("demo", None),
        ("x", "demo"),
        ("y", "demo"),
    ]
    assert client.models.retrieve("y").id == "y"
    assert http.get("/v1/models/x").json()["max_model_len"] == 128


@pytest.mark.parametrize("name", ["demo", "x", "y"])
def test_completions_use_the_adapter_of_that_name(client: openai.OpenAI, expected: dict[str, str], name: str) -> None:
    ask: dict[str, Any] = {"model": name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0.0}
    whole = client.completions.create(**ask)
    assert (whole.model, whole.choices[0].text) == (name, expected[name])
    parts = list(client.completions.create(**ask, stream=True))
    assert "".join(part.choices[0].text for part in parts) == expected[name]
    assert {part.model for part in parts} == {name}


def test_chats_responses_and_embeddings_use_the_adapter(client: openai.OpenAI, http: httpx.Client) -> None:
    messages: Any = [{"role": "user", "content": "Who are you?"}]
    chats, responses, vectors = [], [], []
    for name in ("demo", "x"):
        chat = client.chat.completions.create(model=name, messages=messages, max_tokens=8, temperature=0.0)
        chats.append(chat.choices[0].message.content)
        response = client.responses.create(model=name, input="Who are you?", max_output_tokens=8, temperature=0.0)
        responses.append(response.output_text)
        vectors.append(client.embeddings.create(model=name, input=PROMPT).data[0].embedding)
    assert chats == responses
    assert chats[0] != chats[1]
    assert vectors[0] != vectors[1]
    assert http.post("/tokenize", json={"model": "x", "prompt": PROMPT}).json()["count"] > 0


def test_an_unknown_model_is_a_404_that_lists_the_names(http: httpx.Client) -> None:
    refused = http.post("/v1/completions", json={"model": "z", "prompt": PROMPT})
    assert refused.status_code == 404
    assert refused.json()["error"]["message"] == "There is no model 'z'; this server has demo, x, y."


def test_request_metrics_are_labelled_by_adapter_and_engine_metrics_by_model(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    client.completions.create(model="x", prompt=PROMPT, max_tokens=2)
    lines = http.get("/metrics").text.splitlines()
    running = [line for line in lines if line.startswith("aethermind_num_requests_running{")]
    assert [line.partition("}")[0] for line in running] == ['aethermind_num_requests_running{model_name="demo"']
    assert any(line.startswith("aethermind_request_success_total{") and 'model_name="x"' in line for line in lines)


def test_two_models_of_one_name_are_an_error(adapted: LLM) -> None:
    model = ServedModel.of("x", adapted, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="Two models are called 'x'; give the adapter another name"):
        create_app([model])


def test_a_directory_without_an_adapter_is_an_error_at_start(runtime: Runtime, tmp_path: Path) -> None:
    async def start() -> None:
        async with EngineProcess("demo", EngineConfig(adapters={"x": str(tmp_path)}, **LIMITS), runtime=runtime):
            pass

    with pytest.raises(ConfigError, match=r"holds no adapter_config\.json"):
        asyncio.run(start())


ADMIN = {"Authorization": "Bearer master"}


@pytest.mark.parametrize("is_inprocess", [True, False])
def test_adapters_are_loaded_and_unloaded_while_the_server_runs(
    runtime: Runtime, adapters: dict[str, str], expected: dict[str, str], is_inprocess: bool
) -> None:
    options: Any = {"max_loras": 2, "max_lora_rank": 4, **LIMITS}
    with ExitStack() as stack:
        engine: Any = (
            stack.enter_context(LLM(runtime=runtime, **options))
            if is_inprocess
            else EngineProcess("demo", EngineConfig(**options), runtime=runtime)
        )
        address = stack.enter_context(serving(engine, admin_key="master"))
        http = stack.enter_context(httpx.Client(base_url=address, timeout=30))

        def change(action: str, headers: dict[str, str] = ADMIN, **body: str) -> httpx.Response:
            return http.post(f"/v1/{action}_lora_adapter", json=body, headers=headers)

        def answer(name: str) -> str:
            body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            return str(http.post("/v1/completions", json=body).json()["choices"][0]["text"])

        assert change("load", {}, lora_name="x", lora_path=adapters["x"]).status_code == 401
        loaded = change("load", lora_name="x", lora_path=adapters["x"])
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'x' added successfully.")
        assert change("load", lora_name="other", lora_path=adapters["y"], base_model_name="demo").status_code == 200
        assert [one["id"] for one in http.get("/v1/models").json()["data"]] == ["demo", "x", "other"]
        assert [answer(name) for name in ("demo", "x", "other")] == [expected[name] for name in ("demo", "x", "y")]
        for wrong, status in (
            ({"lora_name": "x", "lora_path": adapters["y"]}, 400),
            ({"lora_name": "third", "lora_path": adapters["y"]}, 400),
            ({"lora_name": "third", "lora_path": "/nowhere", "base_model_name": "none"}, 404),
        ):
            assert change("load", **wrong).status_code == status
        assert change("unload", lora_name="demo").status_code == 404
        assert change("unload", lora_name="third").status_code == 404
        removed = change("unload", lora_name="x")
        assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'x' removed successfully.")
        assert http.post("/v1/completions", json={"model": "x", "prompt": PROMPT}).status_code == 404
        assert change("load", lora_name="x", lora_path=adapters["x"]).status_code == 200
        if not is_inprocess:
            os.kill(engine.pid, signal.SIGKILL)
            while http.get("/ready").status_code != 503:
                pass
            while http.get("/ready").status_code != 200:
                pass
        assert [answer(name) for name in ("x", "other")] == [expected[name] for name in ("x", "y")]
