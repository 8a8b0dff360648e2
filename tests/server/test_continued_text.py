"""Requests whose answer continues given text: an assistant's message, or the text before and after a gap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from tests.end_to_end.models import DEMO, copy_demo
from tests.server.conftest import serving

from aethermind import LLM, Runtime
from aethermind.server.openai.chat import ChatRequest
from aethermind.server.openai.chat_response import ChatOutputParser
from aethermind.server.openai.completions import fill_in_the_middle
from aethermind.server.openai.errors import ApiError
from aethermind.text.answer_format import HERMES_CALLS, AnswerFormat
from aethermind.text.answer_parts import Content, Reasoning

QUESTION = {"role": "user", "content": "Who are you?"}
BEGUN = {"role": "assistant", "content": "I am a small"}
CONTINUED: Any = {
    "model": "demo",
    "messages": [QUESTION, BEGUN],
    "temperature": 0,
    "max_tokens": 12,
}
VLLM = {"add_generation_prompt": False, "continue_final_message": True}


@pytest.fixture(scope="module")
def expected(client: openai.OpenAI) -> str:
    """The continuation of the prompt's text as it stands."""
    text = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\nI am a small"
    return client.completions.create(model="demo", prompt=text, temperature=0, max_tokens=12).choices[0].text


def test_a_final_message_is_continued_as_in_vllm(client: openai.OpenAI, expected: str) -> None:
    assert expected.startswith(" ")
    answer = client.chat.completions.create(**CONTINUED, extra_body=VLLM)
    assert answer.choices[0].message.content == expected
    chunks = client.chat.completions.create(**CONTINUED, extra_body=VLLM, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_a_prefilled_turn_is_continued_as_in_anthropics_api(address: str, expected: str) -> None:
    claude = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    for content in (BEGUN["content"], [{"type": "text", "text": BEGUN["content"]}]):
        messages: Any = [QUESTION, {"role": "assistant", "content": content}]
        ask: Any = {"model": "demo", "max_tokens": 12, "messages": messages, "extra_body": {"temperature": 0}}
        (block,) = claude.messages.create(**ask).content
        assert block.type == "text"
        assert block.text == expected
        with claude.messages.stream(**ask) as stream:
            assert stream.get_final_text() == expected


def test_a_message_of_the_assistant_is_continued_as_in_ollama(address: str, expected: str) -> None:
    answer = ollama.Client(address).chat("demo", [QUESTION, BEGUN], options={"temperature": 0, "num_predict": 12})
    assert answer.message.content == expected


def test_without_a_generation_prompt_the_text_ends_with_the_last_message(http: httpx.Client) -> None:
    def tokens(**fields: Any) -> list[int]:
        answer = http.post("/tokenize", json={"model": "demo", "messages": [QUESTION], **fields})
        found: list[int] = answer.json()["tokens"]
        return found

    whole, without = tokens(), tokens(add_generation_prompt=False)
    assert whole[: len(without)] == without
    assert len(whole) > len(without)
    begun = tokens(messages=[QUESTION, BEGUN], continue_final_message=True)
    assert begun[: len(whole)] == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": [QUESTION]}, "which has to be the assistant's"),
        ({"messages": [QUESTION, {**BEGUN, "content": ""}]}, "with text"),
        ({"add_generation_prompt": True}, "exclude each other"),
    ],
)
def test_what_cannot_be_continued_is_a_400(http: httpx.Client, change: Any, message: str) -> None:
    answer = http.post("/v1/chat/completions", json={**CONTINUED, **VLLM, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continue_final_message"
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "text", "parts"),
    [
        ("<think>I", " see.</think>Four.", [Reasoning(" see."), Content("Four.")]),
        ("<think>I see.</think>", "Four.", [Content("Four.")]),
        ("Four", "<think> is a tag", [Content("<think> is a tag")]),
    ],
)
def test_reasoning_goes_on_where_the_message_opened_it(content: str, text: str, parts: list[Any]) -> None:
    messages = [QUESTION, {"role": "assistant", "content": content}]
    request = ChatRequest.model_validate({"model": "m", "messages": messages, "continue_final_message": True})
    format = AnswerFormat(("<think>", "</think>"), (HERMES_CALLS,))
    parser = ChatOutputParser(request, format, f"user: Who?\nassistant: {content}")
    joined: list[Any] = []
    for part in parser.read(text, is_last=True):
        if joined and type(joined[-1]) is type(part):
            joined[-1] = type(part)(joined[-1].text + part.text)
        else:
            joined.append(part)
    assert joined == parts


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Iterator[str]:
    """A server of the demo model whose special tokens have the names of Codestral's."""
    tokenizer = (DEMO / "tokenizer.json").read_text(encoding="utf-8")
    renamed = tokenizer.replace("<|im_start|>", "[PREFIX]").replace("<|endoftext|>", "[SUFFIX]")
    files = {"tokenizer.json": renamed.encode(), "tokenizer_config.json": b'{"eos_token": "<|im_end|>"}'}
    model = copy_demo(tmp_path_factory.mktemp("coder") / "demo", files=files)
    with serving(LLM(model, device="cpu", dtype="float32", runtime=runtime, max_model_len=512)) as address:
        yield address


def test_a_suffix_asks_for_the_text_between(coder: str) -> None:
    client = openai.OpenAI(base_url=f"{coder}/v1", api_key="none", max_retries=0)
    ask: Any = {"model": "demo", "temperature": 0, "max_tokens": 12}
    plain = client.completions.create(prompt="[SUFFIX] the end.[PREFIX]Once upon", **ask)
    filled = client.completions.create(prompt="Once upon", suffix=" the end.", **ask)
    assert filled.choices[0].text == plain.choices[0].text
    assert filled.usage == plain.usage
    whole = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(prompt="Once upon", suffix=" the end.", stream=True, **ask)
    )
    assert whole == filled.choices[0].text
    answer = ollama.Client(coder).generate(
        "demo", "Once upon", suffix=" the end.", options={"temperature": 0, "num_predict": 12}
    )
    assert answer.response == filled.choices[0].text


def test_a_suffix_needs_a_model_that_fills_in_the_middle(http: httpx.Client) -> None:
    ask = {"model": "demo", "prompt": "Once", "suffix": "end"}
    error = http.post("/v1/completions", json=ask).json()["error"]
    assert error["param"] == "suffix"
    assert "vocabulary has no tokens for it" in error["message"]
    for change in ({"prompt": [1, 2]}, {"echo": True}):
        error = http.post("/v1/completions", json={**ask, **change}).json()["error"]
        assert "suffix goes with prompts that are texts" in error["message"]


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>a<fim_suffix>b<fim_middle>"),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>"),
        (("[PREFIX]", "[SUFFIX]", "[MIDDLE]"), "[SUFFIX]b[PREFIX]a"),
    ],
)
def test_the_prompts_are_those_that_families_are_trained_with(tokens: tuple[str, ...], prompt: str) -> None:
    ids = {token: number for number, token in enumerate((*tokens, "<|fim_pad|>"), 7)}
    tokenizer: Any = SimpleNamespace(token_to_id=ids.get)
    text, ends = fill_in_the_middle(tokenizer, "a", "b")
    assert text == prompt
    assert ids["<|fim_pad|>"] in ends
    with pytest.raises(ApiError, match="no tokens for it"):
        fill_in_the_middle(SimpleNamespace(token_to_id={}.get), "a", "b")  # type: ignore[arg-type]


def test_special_tokens_are_kept_on_request(client: openai.OpenAI) -> None:
    ask: Any = {"model": "demo", "prompt": "Once", "max_tokens": 3, "temperature": 0, "logit_bias": {"2046": 100}}
    assert client.completions.create(**ask).choices[0].text == ""
    kept = client.completions.create(**ask, extra_body={"skip_special_tokens": False})
    assert kept.choices[0].text == "<|im_start|>" * 3
    chat: Any = {"model": "demo", "messages": [QUESTION], "max_tokens": 2, "logit_bias": {"2046": 100}}
    answer = client.chat.completions.create(**chat, extra_body={"skip_special_tokens": False})
    assert answer.choices[0].message.content == "<|im_start|>" * 2


SCHEMA = {"type": "object", "properties": {"fox": {"type": "boolean"}}, "required": ["fox"]}


@pytest.mark.parametrize(
    ("guided", "structured"),
    [
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        ({"guided_regex": "[a-c]{3}"}, {"regex": "[a-c]{3}"}),
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"guided_grammar": 'start: "fox" | "hen"'}, {"grammar": 'start: "fox" | "hen"'}),
    ],
)
def test_guided_fields_are_structured_outputs(client: openai.OpenAI, guided: Any, structured: Any) -> None:
    ask: Any = {"model": "demo", "messages": [QUESTION], "max_tokens": 20, "seed": 3}
    answer = client.chat.completions.create(**ask, extra_body=guided).choices[0].message.content
    assert (
        answer
        == client.chat.completions.create(**ask, extra_body={"structured_outputs": structured})
        .choices[0]
        .message.content
    )
    response = client.responses.create(model="demo", input="Hi", max_output_tokens=20, extra_body={**guided, "seed": 3})
    assert response.output_text
    with pytest.raises(openai.BadRequestError, match="one of structured_outputs and the fields guided_"):
        client.chat.completions.create(**ask, extra_body={**guided, "structured_outputs": structured})
