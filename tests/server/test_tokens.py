"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from pathlib import Path

import httpx
import openai
from tests.end_to_end.models import copy_demo_with_bos
from tests.server.conftest import serving

from aethermind import LLM, Runtime

TEXT = "Once upon a time, in Köln: 🦊"


def test_a_text_is_tokenised_and_detokenised(http: httpx.Client, llm: LLM) -> None:
    tokens = http.post("/tokenize", json={"model": "demo", "prompt": TEXT}).json()
    assert tokens == {"count": len(tokens["tokens"]), "max_model_len": 512, "tokens": llm.tokenizer.encode(TEXT)}
    assert http.post("/detokenize", json={"model": "demo", "tokens": tokens["tokens"]}).json() == {"prompt": TEXT}


def test_a_conversation_is_tokenised_and_detokenised(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Who are you?"}]
    tokens = http.post("/tokenize", json={"model": "demo", "messages": messages}).json()["tokens"]
    text = http.post("/detokenize", json={"model": "demo", "tokens": tokens}).json()["prompt"]
    assert text == "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
    assert http.post("/tokenize", json={"model": "demo", "prompt": text}).json()["tokens"] == tokens


def test_the_token_count_of_a_conversation_equals_its_usage(http: httpx.Client, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Who are you?"}]
    count = http.post("/tokenize", json={"model": "demo", "messages": messages}).json()["count"]
    answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=1)
    assert answer.usage.prompt_tokens == count


def test_texts_far_beyond_the_context_are_rejected(http: httpx.Client) -> None:
    for url, body in (
        ("/tokenize", {"prompt": "word " * 50_000}),
        ("/tokenize", {"messages": [{"role": "user", "content": "word " * 50_000}]}),
        ("/detokenize", {"tokens": [5] * 1025}),
    ):
        error = http.post(url, json={"model": "demo", **body}).json()["error"]
        assert error["code"] == "context_length_exceeded"
    assert http.post("/tokenize", json={"model": "demo", "prompt": "word " * 600}).json()["count"] > 512
    assert http.post("/detokenize", json={"model": "demo", "tokens": [5] * 1024}).status_code == 200


def test_the_bos_token_of_a_template_occurs_once(tmp_path: Path, runtime: Runtime) -> None:
    llm = LLM(copy_demo_with_bos(tmp_path / "model"), device="cpu", max_model_len=64, runtime=runtime)
    messages = [{"role": "user", "content": TEXT}]
    tokens = llm.tokenizer.encode(TEXT, add_special_tokens=True)
    with serving(llm) as address, httpx.Client(base_url=address, timeout=30) as http:
        for body in ({"messages": messages}, {"prompt": TEXT}):
            assert http.post("/tokenize", json={"model": "demo", **body}).json()["tokens"] == tokens
        for url, body in (("chat/completions", {"messages": messages}), ("responses", {"input": TEXT})):
            usage = http.post(f"/v1/{url}", json={"model": "demo", **body}).json()["usage"]
            assert (usage.get("prompt_tokens") or usage["input_tokens"]) == len(tokens)


def test_invalid_requests_are_a_400(http: httpx.Client) -> None:
    for url, body in (
        ("/tokenize", {"model": "demo"}),
        ("/tokenize", {"model": "demo", "prompt": "x", "messages": []}),
        ("/tokenize", {"model": "demo", "messages": []}),
        ("/detokenize", {"model": "demo", "tokens": [10**9]}),
        ("/detokenize", {"model": "demo", "tokens": [-1]}),
        ("/detokenize", {"model": "demo", "tokens": "5"}),
    ):
        assert http.post(url, json=body).status_code == 400
