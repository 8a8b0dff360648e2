"""The endpoints with OpenAI's Python client against the offline API."""

from __future__ import annotations

import httpx
import openai
import pytest

from aethermind import LLM, SamplingParams

GREEDY = {"temperature": 0.0}
TOOL = {"type": "function", "function": {"name": "weather"}}
MESSAGES = [{"role": "user", "content": "Who are you?"}]


def offline(prompt: str, **params: object) -> str:
    """The text a fresh engine over the same model gives; the served one is busy serving."""
    with LLM(device="cpu", dtype="float32", max_model_len=512) as other:
        return other.generate(prompt, SamplingParams(**params))[0].outputs[0].text


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "aethermind"


def test_completion_equals_the_offline_api(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=24, **GREEDY)
    assert answer.choices[0].text == offline("Once upon a time", temperature=0.0, max_tokens=24)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 24, 28)


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 40, "seed": 5}
    whole = client.completions.create(**ask)
    parts = list(client.completions.create(**ask, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(part.usage is None for part in parts)


def test_all_forms_of_prompts_give_the_same_answers(client: openai.OpenAI, llm: LLM) -> None:
    texts = ["The old fox", "A small hen"]
    ids = [llm.tokenizer.encode(text) for text in texts]
    ask = {"model": "demo", "max_tokens": 8, **GREEDY}
    expected = [client.completions.create(prompt=text, **ask).choices[0].text for text in texts]
    for prompt in (texts, ids):
        choices = client.completions.create(prompt=prompt, **ask).choices
        assert [choice.text for choice in choices] == expected
        assert [choice.index for choice in choices] == [0, 1]
    assert client.completions.create(prompt=ids[0], **ask).choices[0].text == expected[0]


def test_several_prompts_are_streamed_concurrently(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "prompt": ["The old fox", "A small hen", "One day"], "max_tokens": 12, **GREEDY}
    whole = [choice.text for choice in client.completions.create(**ask).choices]
    texts = [""] * 3
    for part in client.completions.create(**ask, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == whole


def test_echo_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="demo", prompt="The old fox", max_tokens=6, echo=True, logprobs=2, **GREEDY
    ).choices[0]
    assert answer.text.startswith("The old fox")
    logprobs = answer.logprobs
    num_prompt = len(logprobs.tokens) - 6
    assert "".join(logprobs.tokens) == answer.text
    assert logprobs.text_offset[num_prompt] == len("The old fox")
    assert [answer.text[start : start + 1] for start in logprobs.text_offset] == [one[0] for one in logprobs.tokens]
    assert logprobs.token_logprobs[0] is logprobs.top_logprobs[0] is None
    for chosen, top in list(zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True))[1:]:
        assert len(top) in (2, 3)
        assert chosen <= max(top.values())
    for chosen, top in list(zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True))[num_prompt:]:
        assert len(top) == 2
        assert chosen == max(top.values())


@pytest.mark.parametrize("prompt", ["héé 😀 and", [5, 300, 7]])
@pytest.mark.parametrize("echo", [False, True])
def test_text_offsets_point_to_the_tokens(client: openai.OpenAI, prompt: str | list[int], echo: bool) -> None:
    bias = {str(token_id): 60 for token_id in range(100, 300)}  # bytes, many of them parts of characters
    ask = {"model": "demo", "prompt": prompt, "max_tokens": 30, "echo": echo, "logprobs": 0, "seed": 4, "n": 2}
    whole = client.completions.create(**ask, logit_bias=bias)
    places: dict[int, list[int]] = {0: [], 1: []}
    for part in client.completions.create(**ask, logit_bias=bias, stream=True):
        for choice in part.choices:
            places[choice.index] += choice.logprobs.text_offset
    for choice in whole.choices:
        assert places[choice.index] == choice.logprobs.text_offset
        assert len(choice.text) > len(choice.logprobs.tokens) / 4
        for token, place in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
            if "\ufffd" not in token:
                assert choice.text[place : place + len(token)] == token


def test_logprobs_of_an_echoed_answer_equal_those_of_the_answer(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "logprobs": 1, **GREEDY}
    whole = client.completions.create(**ask, prompt="The old fox", max_tokens=6).choices[0]
    echoed = client.completions.create(**ask, prompt="The old fox" + whole.text, max_tokens=1, echo=True).choices[0]
    assert echoed.logprobs.tokens[-7:-1] == whole.logprobs.tokens
    assert echoed.logprobs.token_logprobs[-7:-1] == pytest.approx(whole.logprobs.token_logprobs, abs=1e-4)
    parts = client.completions.create(**ask, prompt="The old fox" + whole.text, max_tokens=3, echo=True, stream=True)
    tokens = [one for part in parts for one in part.choices[0].logprobs.tokens]
    assert tokens[:-2] == echoed.logprobs.tokens


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "messages": MESSAGES, "max_tokens": 32, **GREEDY}
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content
    parts = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    *chunks, usage = parts
    assert all("usage" in part.model_fields_set and part.usage is None for part in chunks)
    assert "".join(part.choices[0].delta.content or "" for part in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert usage.choices == []
    assert usage.usage.completion_tokens == whole.usage.completion_tokens


def test_echo_with_max_tokens_0_only_scores_the_prompt(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "prompt": "The old fox", "echo": True, "logprobs": 1, "n": 2}
    scored = client.completions.create(**ask, max_tokens=0)
    parts = list(client.completions.create(**ask, max_tokens=0, stream=True, stream_options={"include_usage": True}))
    longer = client.completions.create(**ask, max_tokens=1)
    assert scored.usage.completion_tokens == parts[-1].usage.completion_tokens == 0
    last = {part.choices[0].index: part.choices[0] for part in parts[:-1]}
    for choice in (*scored.choices, *last.values()):
        assert (choice.text, choice.finish_reason) == ("The old fox", "length")
        assert choice.logprobs.tokens == longer.choices[0].logprobs.tokens[:-1]
        assert choice.logprobs.token_logprobs == longer.choices[0].logprobs.token_logprobs[:-1]
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="demo", prompt="x", max_tokens=0)


def test_chat_logprobs(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "messages": MESSAGES, "max_tokens": 5, **GREEDY}
    answer = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0]
    assert "".join(token.token for token in answer.logprobs.content) == answer.message.content
    for token in answer.logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob
        assert bytes(token.bytes).decode() == token.token


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_token_that_is_part_of_a_character_has_its_bytes(client: openai.OpenAI, is_stream: bool) -> None:
    demand = {"structured_outputs": {"choice": ["🦊 é"]}}
    ask = {"model": "demo", "messages": MESSAGES, "max_tokens": 16, "logprobs": True, "top_logprobs": 1}
    answer = client.chat.completions.create(**ask, stream=is_stream, extra_body=demand)
    parts = answer if is_stream else [answer]
    tokens = [
        token for part in parts for token in (part.choices[0].logprobs.content if part.choices[0].logprobs else ())
    ]
    assert b"".join(bytes(token.bytes) for token in tokens).startswith("🦊 é".encode())
    assert any(len(token.bytes) != len(token.token.encode()) for token in tokens), "some are parts"


def test_content_in_parts_and_max_completion_tokens(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Who are "}, {"type": "text", "text": "you?"}]
    ask = {"model": "demo", "max_completion_tokens": 16, **GREEDY}
    whole = client.chat.completions.create(messages=MESSAGES, **ask)
    again = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **ask)
    assert again.choices[0].message.content == whole.choices[0].message.content
    assert again.usage.prompt_tokens == whole.usage.prompt_tokens


def test_stop_strings_and_extensions(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 60, **GREEDY}
    whole = client.completions.create(**ask).choices[0].text
    stopped = client.completions.create(**ask, stop=["."]).choices[0]
    assert stopped.text == whole[: whole.index(".")]
    assert stopped.finish_reason == "stop"
    seeded = {**ask, "temperature": 1.0, "seed": 3, "extra_body": {"top_k": 5, "min_p": 0.05}}
    assert client.completions.create(**seeded).choices[0].text == client.completions.create(**seeded).choices[0].text


def test_errors_are_the_exceptions_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has demo"):
        client.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="demo", prompt="word " * 2000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="top_p is 7"):
        client.completions.create(model="demo", prompt="x", top_p=7)
    with pytest.raises(openai.BadRequestError, match="messages is empty"):
        client.chat.completions.create(model="demo", messages=[])


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools"),
        ({"chat_template_kwargs": {"mood": "merry"}}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, None),
        ({"tools": [], "chat_template_kwargs": {}}, None),
    ],
)
def test_tools_that_the_template_does_not_read_are_a_400(
    http: httpx.Client, extra: dict[str, object], param: str | None
) -> None:
    ask = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    answer = http.post("/v1/chat/completions", json={**ask, **extra})
    assert answer.status_code == (200 if param is None else 400), answer.text
    assert param is None or answer.json()["error"]["param"] == param
