"""The defaults of generation_config.json and the fields of requests, for each endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.end_to_end.models import copy_demo
from tests.server.conftest import serving

from aethermind import LLM, Runtime
from aethermind.engine.serving.async_engine import AsyncEngine
from aethermind.sampling import SamplingParams
from aethermind.sampling.params import SAMPLING_FIELDS, read_sampling_defaults
from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.completions import CompletionRequest
from aethermind.server.openai.responses import ResponseGenerationParams, ResponseRequest
from aethermind.server.served_model import ServedModel

FILE: dict[str, Any] = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "max_new_tokens": 24,
    "min_new_tokens": 4,
    "stop_strings": ["###"],
}
OWN: dict[str, Any] = {
    "temperature": 0.1,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.2,
    "repetition_penalty": 1.5,
    "max_tokens": 9,
    "min_tokens": 2,
    "stop": ["END"],
}
MESSAGES = [{"role": "user", "content": "hi"}]
ENDPOINTS = ("completions", "chat", "responses")
DEFAULT_LENGTH = {"completions": 16, "chat": None, "responses": None}


def params_of(endpoint: str, model: ServedModel, **fields: Any) -> SamplingParams:
    """The sampling parameters of an endpoint for a body with these fields."""
    if endpoint == "completions":
        return CompletionRequest.model_validate({"model": "m", "prompt": "Once", **fields}).sampling(model)
    if endpoint == "chat":
        return ChatRequest.model_validate({"model": "m", "messages": MESSAGES, **fields}).sampling(model)
    if "max_tokens" in fields:
        fields["max_output_tokens"] = fields.pop("max_tokens")
    return ResponseGenerationParams(ResponseRequest.model_validate({"model": "m", "input": "hi", **fields})).sampling(
        model
    )


@pytest.fixture
def served(llm: LLM) -> ServedModel:
    return replace(ServedModel.of("m", llm, AsyncEngine(llm.engine)), sampling_defaults=read_sampling_defaults(FILE))


def test_the_cases_cover_every_field() -> None:
    assert set(FILE) == set(SAMPLING_FIELDS)
    assert set(OWN) == set(SAMPLING_FIELDS.values())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("field", sorted(FILE))
def test_each_default_applies_unless_the_request_has_the_field(endpoint: str, field: str, llm: LLM) -> None:
    model = replace(
        ServedModel.of("m", llm, AsyncEngine(llm.engine)),
        sampling_defaults=read_sampling_defaults({field: FILE[field]}),
    )
    name = SAMPLING_FIELDS[field]
    expected = tuple(FILE[field]) if name == "stop" else FILE[field]
    assert getattr(params_of(endpoint, model), name) == expected
    if endpoint == "responses" and name == "stop":
        return  # /v1/responses has no such field in OpenAI's API
    own = params_of(endpoint, model, **{name: OWN[name]})
    assert getattr(own, name) == (tuple(OWN[name]) if name == "stop" else OWN[name])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", [None, *sorted(OWN)])
def test_all_defaults_combine_with_each_field_of_a_request(
    endpoint: str, name: str | None, served: ServedModel
) -> None:
    params_of(endpoint, served, **({} if name is None else {name: OWN[name]}))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_max_tokens_is_that_of_the_request_then_the_model_then_the_endpoint(endpoint: str, served: ServedModel) -> None:
    assert params_of(endpoint, served, max_tokens=30).max_tokens == 30
    assert params_of(endpoint, served).max_tokens == 24
    assert params_of(endpoint, replace(served, sampling_defaults={})).max_tokens == DEFAULT_LENGTH[endpoint]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_min_tokens_and_max_tokens_defaults_never_contradict_the_request(endpoint: str, served: ServedModel) -> None:
    short = params_of(endpoint, served, max_tokens=2)
    assert (short.min_tokens, short.max_tokens) == (2, 2)
    long = params_of(endpoint, served, min_tokens=40)
    assert (long.min_tokens, long.max_tokens) == (40, 40)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_structured_output_ignores_the_default_of_min_tokens(endpoint: str, served: ServedModel) -> None:
    assert params_of(endpoint, served, structured_outputs={"choice": ["yes"]}).min_tokens == 0


@pytest.fixture(scope="module")
def http(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    content = json.dumps({"do_sample": False, "max_new_tokens": 7, "eos_token_id": 0, "pad_token_id": 0}).encode()
    model = copy_demo(tmp_path_factory.mktemp("defaults") / "m", files={"generation_config.json": content})
    with (
        LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=64) as llm,
        serving(llm) as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/completions", {"prompt": "Once"}, "max_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES}, "max_completion_tokens"),
        ("/v1/responses", {"input": "hi"}, "max_output_tokens"),
    ],
)
def test_a_model_with_max_new_tokens_is_served(http: httpx.Client, path: str, body: dict[str, Any], limit: str) -> None:
    def written(**own: Any) -> int:
        answer = http.post(path, json={"model": "demo", "ignore_eos": True, **body, **own})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        return int(usage.get("completion_tokens", usage.get("output_tokens")))

    assert written() == 7
    assert written(**{limit: 3}) == 3
    assert written(**{limit: 12}) == 12
    refused = http.post(path, json={"model": "demo", **body, limit: 100})
    assert (refused.status_code, limit in refused.text) == (400, True)
