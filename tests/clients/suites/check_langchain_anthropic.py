# /// script
# dependencies = ["langchain-anthropic==1.7.10"]
# ///
"""langchain-anthropic: chats, streams, tools, thinking, structured output, tokens."""

from __future__ import annotations

from common import MODEL, PARAMETERS, URL, run
from langchain_anthropic import ChatAnthropic
from langchain_common import asked, check_structured_outputs, check_tool_calls

OURS = {"model": MODEL, "base_url": URL, "api_key": "none", "max_retries": 0, "max_tokens": 2000}
chat = ChatAnthropic(**OURS)
TOOL = {"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}


def check_chat() -> None:
    whole = chat.invoke(asked("Fine, and you, dear 世界?"))
    assert whole.content == "Fine, and you, dear 世界?"
    assert whole.usage_metadata["output_tokens"] > 1
    parts = list(chat.stream(asked("Fine, and you, dear 世界?")))
    assert "".join(part.text for part in parts) == whole.content
    assert len(parts) > 2


def check_tools() -> None:
    thinking = ChatAnthropic(**OURS, thinking={"type": "enabled", "budget_tokens": 1024})
    for bound, thought in ((chat.bind_tools([TOOL]), ""), (thinking.bind_tools([TOOL]), "<think>\nHm.\n</think>\n\n")):
        for answer in check_tool_calls(bound, thought):
            blocks = [block["type"] for block in answer.content_blocks]
            assert ("reasoning" in blocks) == bool(thought)


def check_structured() -> None:
    check_structured_outputs(chat, TOOL)


def check_tokens() -> None:
    assert chat.get_num_tokens_from_messages(asked("x")) > 10


run("langchain-anthropic", check_chat, check_tools, check_structured, check_tokens)
