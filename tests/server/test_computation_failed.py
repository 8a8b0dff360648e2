"""What a model, a kernel or a device fails at is the server's fault, not the request's: a status of 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.end_to_end.models import poisoned_demo
from tests.server.conftest import serving

from aethermind import LLM, Runtime, SamplingParams, errors
from aethermind.server.openai.errors import as_api_error


@pytest.fixture(scope="module")
def poisoned(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = poisoned_demo(tmp_path_factory.mktemp("poisoned"))
    llm = LLM(model, device="cpu", dtype="float32", max_model_len=64, runtime=runtime)
    with serving(llm) as address, httpx.Client(base_url=address, timeout=30) as http:
        yield http


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/completions", {"prompt": "Once", "n": 2, "temperature": 1}),
        ("/v1/completions", {"prompt": "Once", "echo": True, "logprobs": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
    ],
)
def test_a_model_without_numbers_is_a_fault_of_the_server(
    poisoned: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    answer = poisoned.post(path, json={"model": "demo", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (500, "server_error", "computation_failed")
    assert "not finite" in error["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ComputationError("No."), 500, "computation_failed"),
        (errors.KernelError("No."), 500, "computation_failed"),
        (errors.DeviceError("No."), 500, "device_failed"),
        (errors.OutOfMemoryError("No."), 503, "no_room"),
        (errors.KernelNotFoundError("No."), 400, None),
        (errors.InvalidArgumentError("No."), 400, None),
    ],
)
def test_whose_fault_an_error_is(error: Exception, status: int, code: str | None) -> None:
    failure = as_api_error(error)
    assert (failure.status, failure.code, failure.message) == (status, code, "No.")


def test_an_error_of_a_package_is_raised_as_what_it_is_derived_from(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CardError(errors.DeviceError):
        """As backends have them."""

    def fail(*_: object) -> None:
        raise CardError("The card is gone.")

    monkeypatch.setattr("aethermind.engine.engine.score_prompt", fail)
    with LLM("demo", device="numpy", runtime=runtime) as llm, pytest.raises(errors.DeviceError, match="card is gone"):
        llm.generate("Once", SamplingParams(max_tokens=1, prompt_logprobs=1))
