"""Completions with SentencePiece tokenizers continue the text of the prompt, including spaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.conftest import serving
from tests.server.spm_model import write_spm_model

from aethermind import LLM, Runtime, SamplingParams, StructuredOutputs
from aethermind.text.chat_prompt import ConversationTokenCache

PROMPTS = ["Once upon", "the", "the ", "é.", "Once🦊"]
CHOICES = ["yes", " yes", "  yes", " é🦊 the", "🦊"]


@pytest.fixture(scope="module", params=[False, True], ids=["metaspace", "legacy"])
def spm(request: pytest.FixtureRequest, runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_spm_model(tmp_path_factory.mktemp("spm") / "m", is_legacy=request.param)
    with LLM(model, load_format="dummy", device="cpu", dtype="float32", runtime=runtime) as llm:
        yield llm


@pytest.fixture(scope="module")
def http(spm: LLM) -> Iterator[httpx.Client]:
    with serving(spm) as address, httpx.Client(base_url=address, timeout=30) as client:
        yield client


def forced(spm: LLM, token: str, num_tokens: int = 3, **others: Any) -> SamplingParams:
    token_id = spm.tokenizer.token_to_id(token)
    assert token_id is not None
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, allowed_token_ids=[token_id], **others)


def completed(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/v1/completions", json={"model": "demo", "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_and_answer_join_to_the_decoded_tokens(spm: LLM, prompt: str) -> None:
    for given in (prompt, {"prompt_token_ids": spm.tokenizer.encode(prompt, add_special_tokens=True)}):
        some = [forced(spm, "▁the", logprobs=0)]
        if prompt.isascii():  # a run of bytes that begins in the prompt has no text of its own
            some.append(SamplingParams(temperature=3.0, seed=7, max_tokens=24))
        for params in some:
            (output,) = spm.generate([given], params)
            (*_, streamed) = spm.stream(given, params)
            completion = output.outputs[0]
            whole = spm.tokenizer.decode([*output.prompt_token_ids, *completion.token_ids])
            assert prompt + completion.text == whole.rstrip("\ufffd")
            assert streamed.outputs[0].text == completion.text
            if completion.logprobs is not None:
                assert [next(iter(one.values())).decoded_token for one in completion.logprobs] == [" the"] * 3


def test_the_first_space_is_dropped_without_a_prompt_text(spm: LLM) -> None:
    (output,) = spm.generate([{"prompt_token_ids": [1]}], forced(spm, "▁the", logprobs=1))
    completion = output.outputs[0]
    assert completion.text == "the the the"
    assert completion.logprobs is not None
    assert [one[completion.token_ids[0]].decoded_token for one in completion.logprobs] == ["the", " the", " the"]


@pytest.mark.parametrize("choice", CHOICES)
def test_structured_output_is_the_choice_with_its_spaces(spm: LLM, choice: str) -> None:
    params = SamplingParams(max_tokens=40, structured_outputs=StructuredOutputs(choice=[choice]))
    prompts: list[Any] = [*PROMPTS, {"prompt_token_ids": [1]}]
    assert [output.outputs[0].text for output in spm.generate(prompts, params)] == [choice] * len(prompts)
    (chat,) = spm.chat([{"role": "user", "content": "the"}], params)
    assert chat.outputs[0].text == choice


def test_a_chat_answer_does_not_continue_the_text_of_the_prompt(spm: LLM) -> None:
    messages = [{"role": "user", "content": "yes"}]
    params = forced(spm, "▁the", logprobs=0)
    (whole,) = spm.chat(messages, params)
    memory = ConversationTokenCache(spm.tokenizer)
    *_, streamed = spm.stream_chat(messages, params, memory=memory)
    assert whole.outputs[0].text == streamed.outputs[0].text == "the the the"
    assert streamed.prompt == whole.prompt
    assert whole.outputs[0].logprobs is not None
    joined = "".join(next(iter(one.values())).decoded_token for one in whole.outputs[0].logprobs)
    assert joined == "the the the"
    assert spm.tokenizer.encode(whole.outputs[0].text) == whole.outputs[0].token_ids


@pytest.mark.parametrize("prompt", PROMPTS)
def test_text_tokens_and_offsets_of_a_completion_agree(spm: LLM, http: httpx.Client, prompt: str) -> None:
    the = spm.tokenizer.token_to_id("▁the")
    body = {"prompt": prompt, "max_tokens": 3, "allowed_token_ids": [the], "logprobs": 1}
    plain = completed(http, **body)
    assert plain["text"] == " the the the"
    assert plain["logprobs"]["tokens"] == [" the"] * 3
    assert plain["logprobs"]["text_offset"] == [0, 4, 8]
    echoed = completed(http, **body, echo=True)
    assert echoed["text"] == f"{prompt} the the the"
    tokens, offsets = echoed["logprobs"]["tokens"], echoed["logprobs"]["text_offset"]
    assert offsets[-3:] == [len(prompt), len(prompt) + 4, len(prompt) + 8]
    if prompt.isascii():
        assert "".join(tokens).removeprefix("<s>") == echoed["text"]
        for token, offset in zip(tokens[2:], offsets[2:], strict=True):
            assert echoed["text"][offset : offset + len(token)] == token


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stream_adds_up_to_the_whole_answer(http: httpx.Client, prompt: str) -> None:
    body = {"model": "demo", "prompt": prompt, "temperature": 2, "seed": 3, "max_tokens": 24, "echo": True}
    whole = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    lines = http.post("/v1/completions", json={**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole


def test_the_bytes_of_chat_tokens_join_to_the_answer(http: httpx.Client) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "the"}],
        "structured_outputs": {"choice": [" é🦊 the"]},
        "logprobs": True,
        "max_tokens": 30,
    }
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    joined = bytes(byte for token in choice["logprobs"]["content"] for byte in token["bytes"])
    assert choice["message"]["content"] == " é🦊 the"
    assert joined.decode().removesuffix("</s>") == " é🦊 the"


def test_an_answer_can_be_continued_by_the_next_request(spm: LLM, http: httpx.Client) -> None:
    the = spm.tokenizer.token_to_id("▁the")
    text = "Once"
    for _ in range(3):
        text += completed(http, prompt=text, max_tokens=1, allowed_token_ids=[the])["text"]
    assert text == "Once the the the"


def test_bad_words_match_at_the_end_of_a_text(spm: LLM) -> None:
    """A word is forbidden with its space and as the end of another; SentencePiece's first space is no part of it."""
    the, he, yes = (spm.tokenizer.token_to_id(token) for token in ("▁the", "he", "▁yes"))
    allowed = [the, he, yes]
    for word, expected in (("the", {he, yes}), ("he", {the, yes}), ("yes", {the, he})):
        params = [
            SamplingParams(temperature=9.0, seed=seed, max_tokens=8, allowed_token_ids=allowed, bad_words=[word])
            for seed in range(8)
        ]
        outputs = spm.generate(["Once"] * len(params), params)
        assert {token_id for output in outputs for token_id in output.outputs[0].token_ids} == expected


def test_the_model_is_loaded_from_its_directory(spm: LLM) -> None:
    assert isinstance(spm.engine.compiled.source.path, Path)
    assert spm.tokenizer.encode("Once the")[-1] == spm.tokenizer.token_to_id("▁the")
