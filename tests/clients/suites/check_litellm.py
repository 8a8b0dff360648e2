# /// script
# dependencies = ["litellm==1.110.2"]
# ///
"""litellm, by three protocols: chats, streams, tools, reasoning, structured output, texts, embeddings, errors."""

from __future__ import annotations

import json
from typing import Any

import litellm
from common import CALL, CALLED, MODEL, PARAMETERS, SUNNY, URL, run, with_script

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}]
PROTOCOLS: dict[str, dict[str, Any]] = {
    "openai": {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none", "max_tokens": 900},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none", "max_tokens": 900},
    "ollama": {"model": f"ollama_chat/{MODEL}", "api_base": URL},
}
WITHOUT_LIMIT = {name: value for name, value in PROTOCOLS["openai"].items() if name != "max_tokens"}


def check_chats() -> None:
    for ours in PROTOCOLS.values():
        messages = with_script("Fine, and you, dear 世界?")
        whole = litellm.completion(messages=messages, **ours)
        assert whole.choices[0].message.content == "Fine, and you, dear 世界?"
        assert whole.usage.completion_tokens > 0
        parts = litellm.completion(messages=messages, stream=True, **ours)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content


def check_tools() -> None:
    messages = with_script(f"<think>\nWhich?\n</think>\n\nI look.\n{CALL}", SUNNY)
    for ours in PROTOCOLS.values():
        parts = list(litellm.completion(messages=messages, tools=TOOLS, stream=True, **ours))
        streamed = litellm.stream_chunk_builder(parts, messages=messages)
        whole = litellm.completion(messages=messages, tools=TOOLS, **ours)
        for answer in (whole, streamed):
            message = answer.choices[0].message
            assert answer.choices[0].finish_reason == "tool_calls"
            assert message.reasoning_content.strip() == "Which?"
            assert message.content.strip() == "I look."
            (call,) = message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CALLED)
            result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "sunny"}
            history = [*messages, message.model_dump(), result]
            final = litellm.completion(messages=history, tools=TOOLS, **ours)
            assert final.choices[0].message.content == SUNNY


def check_required() -> None:
    for name in ("openai", "anthropic"):
        asked = litellm.completion(messages=with_script(), tools=TOOLS, tool_choice="required", **PROTOCOLS[name])
        (call,) = asked.choices[0].message.tool_calls
        assert call.function.name == "weather"


def check_structured() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS, "strict": True}}
    answer = litellm.completion(messages=with_script(), response_format=schema, **PROTOCOLS["openai"])
    assert set(json.loads(answer.choices[0].message.content)) == {"city"}


def check_responses() -> None:
    (message,) = with_script("Fine.")
    assert litellm.responses(input=message["content"], **WITHOUT_LIMIT).output_text == "Fine."


def check_texts() -> None:
    ours = {**PROTOCOLS["openai"], "model": f"text-completion-openai/{MODEL}", "max_tokens": 8}
    assert litellm.text_completion(prompt="Once upon a time", **ours).usage.completion_tokens <= 8


def check_embeddings() -> None:
    assert len(litellm.embedding(input=["a fox", "a hen"], **WITHOUT_LIMIT).data) == 2


def check_errors() -> None:
    for name, ours in PROTOCOLS.items():
        provider = ours["model"].partition("/")[0]
        try:
            litellm.completion(messages=with_script(), **{**ours, "model": f"{provider}/gpt-9"})
        except (litellm.NotFoundError, litellm.APIConnectionError) as error:
            assert "gpt-9" in str(error)
            assert name == "ollama" or isinstance(error, litellm.NotFoundError)
        else:
            raise AssertionError("a model that is not there is an error")


run(
    "litellm",
    *(check_chats, check_tools, check_required, check_structured, check_responses, check_texts, check_embeddings),
    check_errors,
)
