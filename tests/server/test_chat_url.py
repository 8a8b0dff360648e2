"""`aethermind chat --url`: a chat with this server, and with servers that behave differently."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import typer.testing
from tests.core.cli.chat.test_chat import Person, said
from tests.server.conftest import await_idle

from aethermind.cli.app import app
from aethermind.cli.chat import chat_models
from aethermind.cli.chat.chat_models import ChatReply, ServerChatModel
from aethermind.cli.chat.conversation import Conversation
from aethermind.cli.chat.repl import Repl, Statistics
from aethermind.server.access import Tenants

GREEDY = ("--max-tokens", "16", "--temperature", "0")


def run(*args: str, lines: str = "") -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["chat", *args], input=lines)


def test_a_chat_with_a_server_equals_a_local_chat(address: str) -> None:
    local = run(*GREEDY, "--dtype", "float32", "--max-model-len", "512", lines="Who are you?\nReally?\n")
    for url in (address, f"{address}/v1", f"{address}/v1/"):
        remote = run("--url", url, *GREEDY, lines="Who are you?\nReally?\n")
        assert (remote.exit_code, remote.stdout) == (0, local.stdout)


def test_commands_and_statistics(address: str) -> None:
    lines = "Who are you?\n/regen\n/set\n/undo\n/stats\n"
    result = run("--url", address, "--stats", "--max-tokens", "12", "--seed", "5", "--ignore-eos", lines=lines)
    assert result.exit_code == 0
    assert result.stdout.count("\n") >= 2
    rows = dict(line.split(maxsplit=1) for line in result.stderr.splitlines() if not line.startswith("["))
    assert rows["max_tokens"] == "12"
    assert rows["temperature"] == "the server's"
    assert rows["context"].endswith("of 512 tokens at the last answer")
    statistics = [line for line in result.stderr.splitlines() if "answer tokens" in line]
    assert ["12 answer tokens" in line for line in statistics] == [True, True]
    assert ["seed 5" in statistics[0], "seed 6" in statistics[1]] == [True, True]


def test_interrupting_an_answer_closes_the_connection(
    address: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ServerChatModel(address, None, None)) as chat_model:
        conversation = Conversation("demo", None, {"max_tokens": 400, "ignore_eos": True})
        repl = Repl(chat_model, conversation, Person("Tell me all"))  # type: ignore[arg-type]
        show = iter([None, KeyboardInterrupt()])

        def interrupted(*_: Any) -> None:
            if (error := next(show, None)) is not None:
                raise error

        monkeypatch.setattr("aethermind.cli.console.TextWriter.show", interrupted)
        repl.run()
        await_idle(http)
    assert repl.conversation.messages[-1].is_interrupted


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--url", "localhost:8000"), ["--url is 'localhost:8000'"]),
        (("--url", "http://127.0.0.1:1"), ["No server answers", "aethermind serve"]),
        (("--url", "{}", "--model", "gpt-9"), ["no model 'gpt-9'", "it has demo"]),
        (("gpt-9", "--url", "{}"), ["no model 'gpt-9'", "it has demo"]),
        (("--url", "{}", "--threads", "2"), ["--threads", "--url"]),
        (("--url", "{}", "--chat-template", "x"), ["--chat-template", "--url"]),
        (("--url", "{}", "--top-k", "-7"), ["--top-k is -7"]),
    ],
)
def test_wrong_options_are_a_one_line_error(address: str, args: tuple[str, ...], words: list[str]) -> None:
    result = run(*(address if arg == "{}" else arg for arg in args), lines="hi\n")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr


def test_an_api_key_is_sent(open_server: Callable[..., httpx.Client]) -> None:
    url = str(open_server(tenants=Tenants.of_keys(["open sesame"])).base_url)
    assert "wants an API key" in run("--url", url, lines="hi\n").stderr
    assert run("--url", url, "--api-key", "open sesame", *GREEDY, lines="hi\n").exit_code == 0


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Repl]:
    """Chat with a mock server that answers with these events or this error; its requests are in `sent`."""

    def ask(*events: Any, status: int = 200, works: Callable[[], Any] = lambda: None) -> Repl:
        def handle(request: httpx.Request) -> httpx.Response:
            if request.method == "GET":
                return httpx.Response(200, json={"data": [{"id": "theirs"}]})
            sent.append(json.loads(request.content))
            works()
            if status != 200:
                return httpx.Response(status, json=events[0])
            return httpx.Response(
                200, content=b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)
            )

        sent: list[Any] = []
        transport = httpx.MockTransport(handle)
        monkeypatch.setattr(
            chat_models, "client_options", lambda *_: {"base_url": "http://other", "transport": transport}
        )
        with closing(ServerChatModel("http://other", None, None)) as chat_model:
            repl = Repl(chat_model, Conversation("theirs", "be kind"), Person("hi", "/stats"))  # type: ignore[arg-type]
            repl.run()
        repl.sent = sent  # type: ignore[attr-defined]
        return repl

    return ask


def delta(finish_reason: str | None = None, **parts: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": finish_reason}]}


def test_only_options_that_were_set_are_sent(other: Callable[..., Any]) -> None:
    (sent,) = other(delta(content="Yes"), delta("stop")).sent
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert sent == {
        "model": "theirs",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_reasoning_is_shown_in_think_tags(other: Callable[..., Repl]) -> None:
    pieces = [
        delta(role="assistant", content=""),
        delta(reasoning_content="Hm"),
        delta(reasoning_content="m."),
        delta(content="Yes"),
    ]
    assert said(other(*pieces, delta("stop"))) == [("u", "hi"), ("a", "<think>\nHmm.\n</think>\n\nYes")]


@pytest.mark.parametrize(
    ("events", "status", "words"),
    [
        ([{"error": {"message": "slow down", "code": "overloaded"}}], 429, ["overloaded", "slow down"]),
        ([{"error": {"message": "5 > 4", "code": "context_length_exceeded"}}], 400, ["no longer fits", "/undo"]),
        ([delta(content="Ye"), {"error": {"message": "engine died", "code": "engine_dead"}}], 200, ["engine died"]),
        ([delta(content="Ye")], 200, ["in the middle", "/regen"]),
        ([[1]], 200, ["does not stream answers"]),
    ],
)
def test_the_chat_continues_after_an_error(
    other: Callable[..., Repl], capsys: pytest.CaptureFixture[str], events: list[Any], status: int, words: list[str]
) -> None:
    other(*events, status=status)
    shown = capsys.readouterr().err
    assert all(word in shown for word in words), shown
    assert "  turns" in shown, "the command after it was run"


def test_ttft_is_measured_from_the_request(other: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers send the headers of a response together with its first token."""
    now = [10.0]
    monkeypatch.setattr(chat_models, "time", SimpleNamespace(perf_counter=lambda: now[-1]))
    replies: list[ChatReply] = []
    monkeypatch.setattr(Statistics, "add", lambda _, reply: replies.append(reply))
    other(delta(content="Yes"), delta("stop"), works=lambda: now.append(10.5))
    assert [reply.ttft_s for reply in replies] == [0.5]
