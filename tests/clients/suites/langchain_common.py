"""What the suites of langchain's packages share."""

from __future__ import annotations

from typing import Any

from common import CALL, CALLED, PARAMETERS, SUNNY, script
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

__all__ = ["asked", "check_structured_outputs", "check_tool_calls"]


def asked(*answers: str) -> list[SystemMessage | HumanMessage]:
    """Messages that are answered by these texts, one in each turn."""
    return [SystemMessage("Be brief."), HumanMessage(f"How? {script(*answers)}")]


def check_tool_calls(bound: Any, thought: str = "") -> list[Any]:
    """Two calls, whole and streamed, and the answer to their results. Returns the answers with the calls."""
    messages = asked(f"{thought}I look.\n{CALL}\n{CALL}", SUNNY)
    streamed: Any = None
    for part in bound.stream(messages):
        streamed = part if streamed is None else streamed + part
    answers = [bound.invoke(messages), streamed]
    for answer in answers:
        assert answer.text.strip() == "I look."
        assert [call["args"] for call in answer.tool_calls] == [CALLED] * 2
        results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
        assert bound.invoke([*messages, answer, *results]).text == SUNNY
    return answers


def check_structured_outputs(chat: Any, tool: dict[str, Any]) -> None:
    """A named tool, and an answer by a schema, each way that the package has."""
    called = chat.bind_tools([tool], tool_choice="weather").invoke(asked())
    assert set(called.tool_calls[0]["args"]) == {"city"}
    schema = {"title": "Person", "description": "Somebody.", **PARAMETERS}
    for method in ("json_schema", "function_calling"):
        assert set(chat.with_structured_output(schema, method=method).invoke(asked())) == {"city"}
