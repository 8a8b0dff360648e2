"""Failures of models, kernels and devices are errors of the server (5xx)."""

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
def test_logits_that_are_not_finite_are_a_500(poisoned: httpx.Client, path: str, fields: dict[str, Any]) -> None:
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
def test_engine_errors_have_the_status_of_their_class(error: Exception, status: int, code: str | None) -> None:
    failure = as_api_error(error)
    assert (failure.status, failure.code, failure.message) == (status, code, "No.")


def test_an_error_class_of_a_package_keeps_its_base_class(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    class CardError(errors.DeviceError):
        """An error class of a backend."""

    def fail(*_: object) -> None:
        raise CardError("The card is gone.")

    monkeypatch.setattr("aethermind.engine.engine.score_prompt", fail)
    with LLM("demo", device="numpy", runtime=runtime) as llm, pytest.raises(errors.DeviceError, match="card is gone"):
        llm.generate("Once", SamplingParams(max_tokens=1, prompt_logprobs=1))
