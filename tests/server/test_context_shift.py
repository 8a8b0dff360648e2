"""A server with a context shift answers conversations that are longer than its context; another refuses them."""

from __future__ import annotations

import httpx
import pytest
from tests.server.conftest import serving

from aethermind import LLM, Runtime

LONG = "The fox sat by the sea and looked for a friend. " * 12
CONTEXT = 64


@pytest.mark.parametrize("shifts", [True, False])
def test_prompts_and_answers_longer_than_the_context(runtime: Runtime, shifts: bool) -> None:
    llm = LLM("demo", device="cpu", max_model_len=CONTEXT, context_shift=shifts, runtime=runtime)
    with llm, serving(llm) as address, httpx.Client(base_url=address, timeout=60) as client:
        asked = {"model": "demo", "temperature": 0, "ignore_eos": True}
        for prompt, max_tokens in (("Once", 3 * CONTEXT), (LONG, 5), (LONG, None)):
            body = {**asked, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
            response = client.post("/v1/chat/completions", json=body)
            if not shifts:
                assert response.status_code == 400
                assert response.json()["error"]["code"] == "context_length_exceeded"
                continue
            assert response.status_code == 200, response.text
            assert response.json()["usage"]["completion_tokens"] == (CONTEXT if max_tokens is None else max_tokens)


def test_log_probabilities_of_a_prompt_longer_than_the_context_are_refused(runtime: Runtime) -> None:
    """They would be of another prompt than the one that is echoed."""
    llm = LLM("demo", device="cpu", max_model_len=CONTEXT, context_shift=True, runtime=runtime)
    with llm, serving(llm) as address, httpx.Client(base_url=address, timeout=60) as client:
        for fields in ({"max_tokens": 2}, {"max_tokens": 0}, {"max_tokens": 2, "stream": True}):
            body = {"model": "demo", "prompt": LONG, "echo": True, "logprobs": 1, **fields}
            response = client.post("/v1/completions", json=body)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "Prompt log probabilities need all of it" in error["message"]
            answer = client.post("/v1/completions", json={**body, "prompt": "The fox sat", "stream": False})
            assert answer.json()["choices"][0]["logprobs"]["tokens"], "a prompt that fits is answered"
