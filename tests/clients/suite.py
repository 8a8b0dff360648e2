"""What people's own clients do with the server: litellm and langchain-openai, run in an environment of theirs.

`python suite.py URL MODEL`; it imports nothing of ours. The first argument ends in /v1.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import litellm
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

URL, MODEL = sys.argv[1:3]
MESSAGES = [{"role": "user", "content": "Who are you?"}]
OURS = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "none", "temperature": 0.0, "max_tokens": 24}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = {"type": "function", "function": {"name": "weather"}}


def check_litellm() -> None:
    """Chats whole and streamed, texts, a tool that is asked for, and errors as its own exceptions."""
    whole = litellm.completion(messages=MESSAGES, **OURS)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0
    parts = litellm.completion(messages=MESSAGES, stream=True, **OURS)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    text = litellm.text_completion(prompt="Once upon a time", **{**OURS, "model": f"text-completion-openai/{MODEL}"})
    assert text.choices[0].text
    asked = litellm.completion(messages=MESSAGES, tools=[TOOL], tool_choice=CALL, **{**OURS, "max_tokens": 60})
    (call,) = asked.choices[0].message.tool_calls
    assert call.function.name == "weather"
    try:
        litellm.completion(messages=MESSAGES, **{**OURS, "model": "openai/gpt-9"})
    except litellm.NotFoundError as error:
        assert "gpt-9" in str(error)
    else:
        raise AssertionError("a model that is not there is an error")


def check_langchain() -> None:
    """Chats whole, streamed and in batches, texts, tools and structured output."""
    chat = ChatOpenAI(model=MODEL, base_url=URL, api_key="none", temperature=0.0, max_tokens=60, max_retries=0)
    asked = [SystemMessage("Be brief."), HumanMessage("Who are you?")]
    whole = chat.invoke(asked)
    assert isinstance(whole, AIMessage)
    assert whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(str(part.content) for part in chat.stream(asked)) == whole.content
    batch = chat.batch([[HumanMessage(f"Tell me of {name}.")] for name in ("foxes", "hens", "owls")])
    assert all(one.content for one in batch)
    called = chat.bind_tools([TOOL], tool_choice="weather").invoke(asked)
    assert called.tool_calls[0]["name"] == "weather"
    assert set(called.tool_calls[0]["args"]) == {"city"}
    schema = {"title": "Person", "description": "Somebody.", **TOOL["function"]["parameters"]}
    assert set(chat.with_structured_output(schema, method="json_schema").invoke(asked)) == {"city"}
    text = OpenAI(model=MODEL, base_url=URL, api_key="none", temperature=0.0, max_tokens=16, max_retries=0)
    assert text.invoke("Once upon a time")


if __name__ == "__main__":
    check_litellm()
    print(f"litellm {version('litellm')}: chats, streams, texts, tools, errors")
    check_langchain()
    print(f"langchain-openai {version('langchain-openai')}: chats, streams, batches, tools, structured output, texts")
