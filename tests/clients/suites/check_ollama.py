# /// script
# dependencies = ["ollama==0.6.3"]
# ///
"""Ollama's client: chat, generate, tools, thinking, formats, embed, tags, show, ps, errors."""

from __future__ import annotations

import json

import ollama
from common import CALL, CALLED, MODEL, PARAMETERS, SUNNY, URL, run, script, with_script

client = ollama.Client(host=URL)
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}]


def check_chat() -> None:
    answer = client.chat(MODEL, with_script("Fine, 世界."))
    assert answer.message.content == "Fine, 世界."
    assert answer.done
    assert answer.eval_count > 1


def check_stream() -> None:
    parts = list(client.chat(MODEL, with_script("Fine, and you, dear 世界?"), stream=True))
    assert "".join(part.message.content or "" for part in parts) == "Fine, and you, dear 世界?"
    assert len(parts) > 2
    assert parts[-1].done


def check_tools() -> None:
    messages = with_script(f"<think>\nWhich?\n</think>\n\nI look.\n{CALL}\n{CALL}", SUNNY)
    whole = client.chat(MODEL, messages, tools=TOOLS, think=True).message
    parts = [part.message for part in client.chat(MODEL, messages, tools=TOOLS, think=True, stream=True)]
    calls = [call for part in parts for call in part.tool_calls or ()]
    assert whole.thinking == "Which?" == "".join(part.thinking or "" for part in parts).strip()
    assert whole.content.strip() == "I look." == "".join(part.content or "" for part in parts).strip()
    for found in (whole.tool_calls, calls):
        assert [dict(call.function.arguments) for call in found] == [CALLED] * 2
    results = [{"role": "tool", "tool_name": "weather", "content": "sunny"}] * 2
    assert client.chat(MODEL, [*messages, whole, *results], tools=TOOLS).message.content == SUNNY


def check_function() -> None:
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return f"sunny in {city}"

    (call,) = client.chat(MODEL, with_script(CALL), tools=[weather]).message.tool_calls
    assert weather(**call.function.arguments) == "sunny in Zürich"


def check_structured() -> None:
    answer = client.chat(MODEL, with_script(), format=PARAMETERS, options={"num_predict": 200})
    assert set(json.loads(answer.message.content)) == {"city"}


def check_generate() -> None:
    answer = client.generate(MODEL, f"How? {script('Fine.')}", system="Be kind.")
    assert answer.response == "Fine."
    raw = client.generate(MODEL, "Once upon a time", raw=True, options={"num_predict": 8})
    assert raw.eval_count <= 8


def check_embed() -> None:
    both = client.embed(MODEL, ["a fox", "a hen"]).embeddings
    assert len(both) == 2
    assert abs(sum(x * x for x in both[0]) - 1) < 1e-4


def check_models() -> None:
    names = [model.model for model in client.list().models]
    assert any(name.partition(":")[0] == MODEL for name in names)
    assert "completion" in client.show(MODEL).capabilities
    assert client.ps().models


def check_errors() -> None:
    for is_stream in (False, True):
        try:
            list(client.chat("llama-9", with_script(), stream=is_stream))
        except ollama.ResponseError as error:
            assert error.status_code == 404
            assert "llama-9" in error.error
        else:
            raise AssertionError("a model that is not there is an error")


run(
    "ollama",
    *(check_chat, check_stream, check_tools, check_function, check_structured, check_generate, check_embed),
    *(check_models, check_errors),
)
