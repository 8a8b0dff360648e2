"""`chat --mcp`: tools of MCP servers, run with consent, by a model here and by that of a server."""

from __future__ import annotations

import json
import re
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.clients.scripted import answer_to, grammar_of, scripted_model, serving_scripted
from tests.clients.suites.common import script
from tests.core.cli.chat.test_chat import Person

from aethermind import LLM, Runtime
from aethermind.cli.chat.chat_models import LocalChatModel, ServerChatModel
from aethermind.cli.chat.conversation import Conversation
from aethermind.cli.chat.mcp_tools import McpTools
from aethermind.cli.chat.repl import Repl
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import StructuredOutputs
from aethermind.text.chat_prompt import chat_prompt

mcpserver = pytest.importorskip("mcp.server.mcpserver", reason="The package mcp is not installed.")

STDIO_SERVER = """
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
server = MCPServer("notes")
notes = []

@server.tool()
def add_note(text: str) -> str:
    "Write a note."
    notes.append(text)
    return f"{len(notes)} notes, the last is {text}"

@server.tool()
def fail() -> str:
    "Fail."
    raise ToolError("it is broken")

server.run()
"""


def call(name: str, **arguments: Any) -> str:
    return f"I call it.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class ScriptedLLM:
    """An LLM that writes the answers of its prompts' scripts."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def stream_chat(self, messages: Any, params: Any, **options: Any) -> Any:
        text = chat_prompt(self._llm.tokenizer, messages, tools=options.get("tools"))
        constraint = StructuredOutputs(grammar=grammar_of(answer_to(text)))
        return self._llm.stream_chat(messages, replace(params, structured_outputs=constraint), **options)


class Consenting(Person):
    """Answers questions by what was planned."""

    def __init__(self, *entries: str, answers: tuple[str, ...] = ()) -> None:
        super().__init__(*entries)
        self.answers = list(answers)

    def ask(self, question: str) -> str:
        return self.answers.pop(0)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, runtime: Runtime) -> Iterator[LLM]:
    model = scripted_model(tmp_path_factory.mktemp("mcp"))
    with LLM(model, device="cpu", load_format="dummy", runtime=runtime, max_model_len=8192) as llm:
        yield llm


@pytest.fixture(scope="module")
def address(llm: LLM) -> Iterator[str]:
    with serving_scripted(llm) as address:
        yield address


@pytest.fixture(scope="module")
def stdio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpTools]:
    file = tmp_path_factory.mktemp("server") / "notes.py"
    file.write_text(STDIO_SERVER)
    with McpTools([shlex.join([sys.executable, str(file)])]) as tools:
        yield tools


@pytest.fixture
def url() -> Iterator[str]:
    """An MCP server with streamable HTTP."""
    server = mcpserver.MCPServer("clock")

    @server.tool()
    def add_note(text: str) -> str:
        """Read the clock."""
        return f"noon, {text}"

    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error"))
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        running.should_exit = True
        thread.join()


def talk(chat_model: Any, tools: McpTools, person: Person, **options: Any) -> list[tuple[str, str]]:
    repl = Repl(chat_model, Conversation("m", None, {"max_tokens": 500}), person, tools=tools, **options)
    repl.run()
    return [(message.role, message.content) for message in repl.conversation.messages]


@pytest.mark.parametrize("where", ["here", "server"])
def test_calls_are_run_after_consent(where: str, llm: LLM, address: str, stdio: McpTools) -> None:
    """Always lasts for the chat; what is refused the model is told, and so it is of errors."""
    tools = stdio.functions
    assert [tool["function"]["name"] for tool in tools] == ["add_note", "fail"]
    model: Any = LocalChatModel(ScriptedLLM(llm), tools=tools) if where == "here" else None  # type: ignore[arg-type]
    model = model or ServerChatModel(address, None, None, tools)
    answers = [call("add_note", text="ä"), call("fail"), call("add_note", text="ö"), call("fail"), "Done."]
    person = Consenting(f"Go. {script(*answers)}", answers=("a", "n", "yes"))
    (_, question), *others = talk(model, stdio, person)
    assert question.startswith("Go.")
    assert others == [
        ("assistant", "I call it."),
        ("tool", others[1][1]),
        ("assistant", "I call it."),
        ("tool", "Error: the user does not allow this call."),
        ("assistant", "I call it."),
        ("tool", others[5][1]),
        ("assistant", "I call it."),
        ("tool", others[7][1]),
        ("assistant", "Done."),
    ]
    assert others[1][1].endswith("the last is ä")
    assert others[5][1].endswith("the last is ö")
    assert re.fullmatch("Error: .*it is broken", others[7][1])


def test_calls_that_are_interrupted_have_a_result(address: str, stdio: McpTools) -> None:
    """Without one the next request would have a call that no result follows, which templates and servers refuse."""

    class Interrupting(Consenting):
        def ask(self, question: str) -> str:
            raise KeyboardInterrupt

    model: Any = ServerChatModel(address, None, None, stdio.functions)
    person = Interrupting(f"Go. {script(call('fail') + call('add_note', text='x'))}", f"Go. {script('Done.')}")
    roles_and_texts = talk(model, stdio, person)
    assert roles_and_texts[2:4] == [("tool", "Error: the user stopped this call.")] * 2
    assert roles_and_texts[-1] == ("assistant", "Done.")


def test_tools_of_several_servers_have_names_of_their_own(url: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.py"
    file.write_text(STDIO_SERVER)
    with McpTools([shlex.join([sys.executable, str(file)]), url]) as tools:
        names = [tool["function"]["name"] for tool in tools.functions]
        assert names == ["add_note", "fail", "add_note_2"]
        assert tools.call("add_note_2", {"text": "x"}) == "noon, x"
        assert tools.call("add_note", {"text": "x"}) == "1 notes, the last is x"
        assert tools.call("other", {}) == "Error: there is no tool other; there are add_note, fail, add_note_2."


def test_a_server_that_does_not_start_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="The MCP server 'no-such-command' cannot be used: "):
        McpTools(["no-such-command"]).__enter__()


def test_the_error_of_a_server_that_cannot_be_reached_says_why() -> None:
    """The client's tasks raise it in groups of errors."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/mcp"
    with pytest.raises(InvalidArgumentError, match=r"cannot be used: .*onnect"):
        McpTools([url]).__enter__()


def test_from_a_pipe_only_allowed_tools_run(address: str, invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "notes.py"
    file.write_text(STDIO_SERVER)
    command = shlex.join([sys.executable, str(file)])
    text = f"Go. {script(call('add_note', text='x'), call('fail'), 'Done.')}\n"
    options = ["--url", address, "--mcp", command, "--mcp-allow", "add_note"]
    result = invoke("chat", *options, input=text)
    assert (result.exit_code, result.stdout) == (0, "I call it.\nI call it.\nDone.\n")
    assert "[the model calls add_note with" in result.stderr
    assert "[fail was not run; --mcp-allow fail runs it without a question]" in result.stderr
    assert "add_note was not run" not in result.stderr


def test_calls_and_results_are_saved() -> None:
    conversation = Conversation("m")
    conversation.add_user_message("Go.")
    calls = ({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},)
    conversation.add_reply("", tool_calls=calls)
    conversation.add_result("1", "done")
    again = Conversation.from_record(json.loads(json.dumps(conversation.as_record())), Conversation("m"))
    assert again.messages == conversation.messages
    assert again.prompt()[1:] == [
        {"role": "assistant", "content": "", "tool_calls": list(calls)},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
    ]


def test_calls_whose_arguments_are_no_json_can_be_loaded_and_answered(llm: LLM) -> None:
    """A server's model may write such arguments, and the conversation may go on with a model here."""
    function = {"name": "f", "arguments": "{"}
    record: Any = {
        "messages": [
            {"role": "user", "content": f"Go. {script('One.', 'Two.')}"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]},
            {"role": "tool", "content": "Error: the arguments are not JSON.", "tool_call_id": "1"},
        ]
    }
    conversation = Conversation.from_record(record, Conversation("m", None, {"max_tokens": 20}))
    *_, reply = LocalChatModel(ScriptedLLM(llm)).reply(conversation, 0)  # type: ignore[arg-type]
    assert reply.text == "Two."
    for wrong in ({}, {"name": "f"}, {"name": "f", "arguments": {}}, "f"):
        record["messages"][1]["tool_calls"] = [{"function": wrong}]
        with pytest.raises(InvalidArgumentError, match="not a list of calls"):
            Conversation.from_record(record, Conversation("m"))
