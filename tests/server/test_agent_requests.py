"""Requests in the shapes that Codex, Claude Code and OpenCode send; `make agent-check` runs the agents themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.clients.scripted import MODEL, scripted_model, serving_scripted
from tests.clients.suites.common import script

from aethermind import LLM, Runtime

PATCH = '*** Begin Patch\n*** Update File: a.py\n@@\n-print("ä")\n+print("ö")\n*** End Patch\n'
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "tty": {"type": "boolean"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Tools for sub-agents.",
    "tools": [{**SHELL, "name": name} for name in ("spawn_agent", "wait_agent")],
}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /.+/s'}
APPLY_PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR}
HOSTED = {"type": "web_search", "external_web_access": True}
CODEX: dict[str, Any] = {
    "model": MODEL,
    "tools": [SHELL, AGENTS, APPLY_PATCH, HOSTED],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "text": {"verbosity": "low"},
    "prompt_cache_key": "session",
    "extra_body": {"client_metadata": {"turn": "1"}},
}


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Iterator[str]:
    model = scripted_model(tmp_path_factory.mktemp("agents"))
    options: dict[str, Any] = {"device": "cpu", "load_format": "dummy", "runtime": runtime, "max_model_len": 16384}
    with LLM(model, **options) as llm, serving_scripted(llm) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("is_stream", [False, True])
def test_codex_calls_tools_in_namespaces_and_custom_tools(client: openai.OpenAI, is_stream: bool) -> None:
    """The calls have the names and forms of the request, and so does the history that the model reads."""
    calls = [
        called("exec_command", cmd="cat a.py"),
        called("multi_agent_v1__spawn_agent", cmd="look"),
        called("apply_patch", input=PATCH),
    ]
    answers = [f"<think>\nHm.\n</think>\n\nI look.\n{chr(10).join(calls)}", "It is done."]
    items: list[Any] = [
        message("developer", "You are a coding agent."),
        message("developer", "There are no skills."),
        message("user", "<environment_context>here</environment_context>"),
        message("user", f"Edit the file. {script(*answers)}"),
    ]
    if is_stream:
        with client.responses.stream(**CODEX, input=items) as stream:
            events = list(stream)
            response = stream.get_final_response()
        texts = {event.type: event.input for event in events if event.type == "response.custom_tool_call_input.done"}
        assert list(texts.values()) == [PATCH]
    else:
        response = client.responses.create(**CODEX, input=items)
    reasoning, text, shell, spawn, patch = response.output
    assert reasoning.content[0].text == "Hm."
    assert text.content[0].text == "I look."
    assert (shell.type, shell.name, json.loads(shell.arguments)) == (
        "function_call",
        "exec_command",
        {"cmd": "cat a.py"},
    )
    assert (spawn.type, spawn.name, spawn.namespace) == ("function_call", "spawn_agent", "multi_agent_v1")
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", PATCH)
    results = [
        {"type": "function_call_output", "call_id": shell.call_id, "output": 'print("ä")'},
        {"type": "function_call_output", "call_id": spawn.call_id, "output": "spawned"},
        {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "Success."},
    ]
    sent_back = [item.model_dump(exclude_none=True) for item in response.output]
    final = client.responses.create(**CODEX, input=[*items, *sent_back, *results])
    assert final.output_text == "It is done."
    # What was generated and what the history renders are the same tokens, so that they are found in the prefix cache.
    assert final.usage.input_tokens_details.cached_tokens > response.usage.input_tokens


def test_a_tool_that_nobody_can_run_is_a_400(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"tools\.0: type should be one of"):
        client.responses.create(model=MODEL, input="Hi", tools=[{"type": "file_search", "vector_store_ids": ["x"]}])


def test_a_custom_tool_may_be_required(client: openai.OpenAI) -> None:
    tools, choice = [{**APPLY_PATCH, "format": {"type": "text"}}], {"type": "custom", "name": "apply_patch"}
    ask = {"model": MODEL, "input": "Edit.", "max_output_tokens": 2000, "tools": tools, "tool_choice": choice}
    response = client.responses.create(**ask, temperature=0.0)
    assert response.output[0].type in ("custom_tool_call", "message")  # a text of its own may have no end
    with pytest.raises(openai.BadRequestError, match="other"):
        client.responses.create(**{**ask, "tool_choice": {"type": "custom", "name": "other"}})


def test_claude_code_has_a_message_of_the_system_at_the_end(address: str) -> None:
    """Messages of the system in the middle, adaptive thinking, effort, context management, and fields of betas."""
    schema = {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}
    tools = [{"name": "Read", "description": "Reads a file.", "input_schema": {**schema, "$schema": "x"}}]
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0;"}
    body = {
        "model": MODEL,
        "max_tokens": 32000,
        "stream": True,
        "system": [
            billing,
            {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": script(called("Read", file_path="/a.py"))}]},
            {"role": "system", "content": "There are no skills."},
        ],
        "tools": tools,
        "metadata": {"user_id": '{"device_id":"1"}'},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }
    with httpx.Client(base_url=address) as http:
        assert http.head("/").status_code == 200
        answer = http.post("/v1/messages?beta=true", json=body, headers={"anthropic-beta": "effort-2025-11-24"})
    assert answer.status_code == 200, answer.text
    assert '"type":"tool_use"' in answer.text.replace(" ", "")
