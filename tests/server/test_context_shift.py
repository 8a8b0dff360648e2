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
