# /// script
# dependencies = ["openai==3.54.0"]
# ///
"""OpenAI's client: chat completions, responses, completions, embeddings, models, errors."""

from __future__ import annotations

import asyncio
import json

import openai
from common import CALL, CALLED, MODEL, PARAMETERS, SUNNY, URL, Person, run, script, with_script

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS = [{"type": "function", "strict": True, **FUNCTION}]


def check_chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=with_script("Fine, 世界."))
    assert answer.choices[0].message.content == "Fine, 世界."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def check_stream() -> None:
    options = {"include_usage": True}
    messages = with_script("Fine, and you, dear 世界?")
    chunks = list(client.chat.completions.create(model=MODEL, messages=messages, stream=True, stream_options=options))
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == "Fine, and you, dear 世界?"
    assert sum(map(bool, parts)) > 1
    assert chunks[-1].usage.completion_tokens > 1


def check_tools() -> None:
    messages = with_script(f"<think>\nWhich?\n</think>\n\nI look.\n{CALL}\n{CALL}", SUNNY)
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    whole = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [CALLED] * 2
        results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in choice.message.tool_calls]
        final = client.chat.completions.create(model=MODEL, messages=[*messages, choice.message, *results], tools=TOOLS)
        assert final.choices[0].message.content == SUNNY
    assert whole.message.reasoning_content == "Which?"


def check_required() -> None:
    asked = client.chat.completions.create(model=MODEL, messages=with_script(), tools=TOOLS, tool_choice="required")
    (call,) = asked.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city"}


def check_structured() -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=with_script(), response_format=Person, max_tokens=999)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    response = client.responses.parse(model=MODEL, input="Who?", text_format=Person, max_output_tokens=999)
    assert isinstance(response.output_parsed, Person)


def check_responses() -> None:
    answer = f"<think>\nWhich?\n</think>\n\nI look.\n{CALL}"
    asked = [{"role": "user", "content": f"How? {script(answer, SUNNY)}"}]
    with client.responses.stream(model=MODEL, input=asked, tools=FLAT_TOOLS) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        response = stream.get_final_response()
    assert text.strip() == "I look."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert json.loads(response.output[2].arguments) == CALLED
    result = {"type": "function_call_output", "call_id": response.output[2].call_id, "output": "sunny"}
    final = client.responses.create(model=MODEL, input=[*asked, *response.output, result], tools=FLAT_TOOLS)
    assert final.output_text == SUNNY
    assert final.usage.output_tokens > 0


def check_texts() -> None:
    text = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8)
    assert text.usage.completion_tokens <= 8


def check_embeddings() -> None:
    vectors = client.embeddings.create(model=MODEL, input=["a fox", "a hen"], encoding_format="float").data
    packed = client.embeddings.create(model=MODEL, input=["a fox", "a hen"]).data
    assert [one.index for one in vectors] == [0, 1]
    for vector, same in zip(vectors, packed, strict=True):
        assert max(abs(a - b) for a, b in zip(vector.embedding, same.embedding, strict=True)) < 1e-6


def check_models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def check_errors() -> None:
    for changed, error in (
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
    ):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": with_script(), **changed})
        except error as raised:
            assert raised.message
        else:
            raise AssertionError(changed)


def check_async() -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as own:
            asks = [own.chat.completions.create(model=MODEL, messages=with_script(f"Answer {n}.")) for n in range(8)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asks)]

    assert asyncio.run(ask()) == [f"Answer {n}." for n in range(8)]


run(
    "openai",
    *(check_chat, check_stream, check_tools, check_required, check_structured, check_responses, check_texts),
    *(check_embeddings, check_models, check_errors, check_async),
)
