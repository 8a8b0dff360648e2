"""chat: prompts to the model, output and remarks, and the commands."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.cli.conftest import request_output

from aethermind.cli.chat.chat_models import LocalChatModel
from aethermind.cli.chat.conversation import Conversation
from aethermind.cli.chat.repl import Interrupt, Repl
from aethermind.cli.chat.slash import COMMANDS
from aethermind.errors import ContextLengthError, EngineDeadError


class Person:
    """Enters what was planned, as at a terminal; `/edit` without text turns the message into `edited`."""

    is_interactive = True

    def __init__(self, *entries: str, edited: str | None = None) -> None:
        from aethermind.cli.chat.readers import Entry

        self.entries = [Entry(entry.removeprefix("/"), entry.startswith("/")) for entry in entries]
        self.edited = edited

    def read(self) -> Any:
        return self.entries.pop(0) if self.entries else None

    def edit(self, text: str) -> str | None:
        return self.edited


def chat(llm: Any, *entries: str, edited: str | None = None, **options: Any) -> Repl:
    conversation = Conversation("demo", None, options.pop("sampling", {}))
    repl = Repl(LocalChatModel(llm), conversation, Person(*entries, edited=edited), **options)
    repl.run()
    return repl


def said(repl: Repl) -> list[tuple[str, str]]:
    return [(message.role[0], message.content) for message in repl.conversation.messages]


def test_lines_of_a_pipe_are_turns(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("An", "Answer")
    result = invoke("chat", "--system", "be brief", input="one\n\ntwo\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Answer\nAnswer\n", "")
    assert [message["content"] for message in llm.prompts[1]] == ["be brief", "one", "Answer", "two"]
    assert llm.is_closed


def test_statistics_say_what_was_reused(invoke: Any, fake_llm: Any) -> None:
    fake_llm("a", "ab", "abc")
    result = invoke("chat", "--stats", "--seed", "5", input="hi\n/stats\n")
    assert result.stdout == "abc\n"
    line, *table = result.stderr.splitlines()
    assert line == ("[2 prompt tokens, 0 reused · 3 answer tokens · first after 500 ms · then 10.0 tokens/s · seed 5]")
    assert [row.split()[0] for row in table] == ["turns", "answers", "prompts", "context"]
    assert "5 of 64 tokens" in table[-1]


def test_options_reach_the_model_and_the_sampler(invoke: Any, fake_llm: Any, tmp_path: Path) -> None:
    llm = fake_llm("a")
    llm.sampling_defaults = {"top_p": 0.5, "top_k": 9}
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    options = f"--model there --device numpy --num-kv-blocks 3 --top-k 4 --max-tokens 7 --chat-template {template}"
    assert invoke("chat", *options.split(), input="hi\n").exit_code == 0
    assert {"model": "there", "device": "numpy", "num_kv_blocks": 3}.items() <= llm.options.items()
    (params,) = llm.params
    assert (params.top_k, params.top_p, params.max_tokens, params.temperature) == (4, 0.5, 7, 0.7)
    assert llm.chat_template == "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("args", "lines", "words"),
    [
        (("--temperature", "-1"), "", ["temperature"]),
        (("--chat-template", "gone.jinja"), "", ["gone.jinja", "No such file"]),
        ((), "/frobnicate\n", ["no command /frobnicate", "/help"]),
        ((), "/hepl\n", ["did you mean /help"]),
        ((), "/undo\n", ["Nothing was said yet"]),
        ((), "/undo it\n", ["/undo takes no argument"]),
        ((), "/set top_q 1\n", ["top_q", "did you mean top_"]),
        ((), "/set top_p\n", ["A value is missing", "/set top_p VALUE"]),
        ((), "/save\n", ["/save FILE"]),
        ((), "hi\n/edit\n", ["/edit TEXT"]),
    ],
)
def test_errors_through_a_pipe_are_one_line(
    invoke: Any, fake_llm: Any, args: tuple[str, ...], lines: str, words: list[str]
) -> None:
    fake_llm("a")
    result = invoke("chat", *args, input=lines)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words)


def test_a_broken_template_is_an_error_before_the_first_message(invoke: Any, fake_llm: Any, tmp_path: Path) -> None:
    llm = fake_llm("a")
    template = tmp_path / "template.jinja"
    template.write_text("{% for %}")
    result = invoke("chat", "--chat-template", str(template), input="hi\n")
    assert (result.exit_code, llm.prompts) == (2, [])
    assert "syntax error" in result.stderr


def test_a_model_without_a_template_cannot_chat(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("a")
    llm.tokenizer.chat_template = None
    result = invoke("chat", "--model", "base", input="hi\n")
    assert (result.exit_code, llm.prompts) == (2, [])
    assert all(word in result.stderr for word in ("base", "aethermind generate", "--chat-template FILE"))


def test_commands_change_the_conversation(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llm = fake_llm("answer")
    repl = chat(llm, "a", "b", "/undo", "/system be kind", "/set top-k 3", "c", "/regen", "/edit d", "/exit", "never")
    assert said(repl) == [("u", "a"), ("a", "answer"), ("u", "d"), ("a", "answer")]
    assert [prompt[-1]["content"] for prompt in llm.prompts] == ["a", "b", "c", "c", "d"]
    assert llm.prompts[-1][0] == {"role": "system", "content": "be kind"}
    assert [params.top_k for params in llm.params] == [0, 0, 3, 3, 3]
    captured = capsys.readouterr()
    assert captured.out == "answer\n" * 5
    assert "[took back: b]" in captured.err
    assert chat(llm, "a", "/system x", "/system none", "/clear").conversation.prompt() == []


def test_each_attempt_has_its_own_reproducible_seed(fake_llm: Any) -> None:
    llm = fake_llm("answer")
    chat(llm, "a", "/regen", "/help", "/regen", "b", sampling={"seed": 5})
    assert [params.seed for params in llm.params] == [5, 6, 7, 5]


@pytest.mark.parametrize(("edited", "last"), [("new", "new"), (None, "old"), ("", "old"), ("old", "old")])
def test_the_last_message_is_edited_in_place(fake_llm: Any, edited: str | None, last: str) -> None:
    llm = fake_llm("answer")
    repl = chat(llm, "old", "/edit", edited=edited)
    assert said(repl) == [("u", last), ("a", "answer")]
    assert len(llm.prompts) == 1 + (last == "new")


def test_a_saved_conversation_continues(fake_llm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llm, path = fake_llm("answer"), tmp_path / "chat.json"
    chat(llm, "/system be kind", "/set temperature 0", "a", f"/save {path}")
    record = json.loads(path.read_text())
    record["model"] = "another"
    path.write_text(json.dumps(record))
    repl = chat(llm, "lost", f"/load {path}", "b")
    assert said(repl) == [("u", "a"), ("a", "answer"), ("u", "b"), ("a", "answer")]
    assert (repl.conversation.system, repl.conversation.model) == ("be kind", "demo")
    assert llm.params[-1].temperature == 0
    assert "answered by another" in capsys.readouterr().err


def test_a_stopped_answer_is_kept_and_can_be_regenerated(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llm = fake_llm("par", "partial", KeyboardInterrupt())
    repl = chat(llm, "a", "/help")
    (_, answer) = repl.conversation.messages
    assert (answer.content, answer.is_interrupted, llm.is_stream_closed) == ("partial", True, True)
    captured = capsys.readouterr()
    assert captured.out == "partial\n"
    assert "[stopped; /regen answers again" in captured.err
    llm = fake_llm(KeyboardInterrupt())
    assert said(chat(llm, "a")) == [("u", "a"), ("a", "")]


def test_ctrl_c_just_after_an_answer_does_not_end_the_chat(fake_llm: Any) -> None:
    llm = fake_llm("answer")
    person = Person("a", "b")
    turns = iter([person.entries[0], KeyboardInterrupt(), person.entries[1], None])

    def read() -> Any:
        turn = next(turns)
        if isinstance(turn, KeyboardInterrupt):
            raise turn
        return turn

    person.read = read  # type: ignore[method-assign]
    Repl(LocalChatModel(llm), Conversation("demo"), person).run()
    assert [prompt[-1]["content"] for prompt in llm.prompts] == ["a", "b"]


def test_the_first_ctrl_c_after_text_is_deferred_and_others_raise() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(is_caught=True) as interrupt:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupt.is_deferred = True
        assert not interrupt.is_requested
        signal.raise_signal(signal.SIGINT)
        assert interrupt.is_requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with Interrupt(is_caught=False), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("text", "steps", "shown"), [("", ["press"], ""), ("a", ["press", "step"], "a")])
def test_ctrl_c_is_deferred_to_the_next_token_once_there_is_text(
    fake_llm: Any, capsys: pytest.CaptureFixture[str], text: str, steps: list[str], shown: str
) -> None:
    llm, seen = fake_llm(), []

    def stream(*_: Any, **__: Any) -> Iterator[Any]:
        yield request_output(text, [1])
        seen.append("press")
        signal.raise_signal(signal.SIGINT)
        seen.append("step")
        yield request_output(text, [1, 2])
        seen.append("another step")

    llm.stream = stream
    repl = chat(llm, "a")
    assert (seen, said(repl)) == (steps, [("u", "a"), ("a", shown)])
    assert "[stopped" in capsys.readouterr().err


def test_a_pipe_is_interrupted_as_a_whole(invoke: Any, fake_llm: Any) -> None:
    llm = fake_llm("a", KeyboardInterrupt())
    result = invoke("chat", input="hi\nho\n")
    assert (result.exit_code, len(llm.prompts), llm.is_closed) == (130, 1, True)


def test_a_full_context_keeps_the_conversation(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llm = fake_llm("answer")
    repl = chat(llm, "a")
    llm.texts = (ContextLengthError("too long"),)
    repl.reader = Person("b", "/undo")  # type: ignore[assignment]
    repl.run()
    error = capsys.readouterr().err
    assert all(word in error for word in ("context of 64 tokens", "Nothing is lost", "/undo", "/clear", "/save"))
    assert "[took back: b]" in error
    assert said(repl) == [("u", "a"), ("a", "answer")]


@pytest.mark.parametrize(
    ("num_tokens", "words"), [(3, "max_tokens = 16; /set max_tokens"), (62, "context of 64 tokens is full; /undo")]
)
def test_an_answer_cut_by_length_names_the_limit(
    fake_llm: Any, capsys: pytest.CaptureFixture[str], num_tokens: int, words: str
) -> None:
    llm = fake_llm(*("a" * (i + 1) for i in range(num_tokens)))
    llm.last_reason = "length"
    chat(llm, "a")
    assert words in capsys.readouterr().err


def test_errors_at_a_terminal_are_printed_and_the_chat_continues(
    fake_llm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    repl = chat(fake_llm("answer"), "/frobnicate", "/set top_p 3", "/load /gone.json", "a")
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 3
    assert said(repl) == [("u", "a"), ("a", "answer")]


def test_help_lists_every_command(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    chat(fake_llm(), "/help")
    shown = capsys.readouterr().err
    assert all(f"  /{name}" in shown for name in COMMANDS)
    assert '"""' in shown


def test_an_error_begins_on_its_own_line(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    repl = chat(fake_llm("half", EngineDeadError("The server hung up.")), "a", "/regen")
    captured = capsys.readouterr()
    assert captured.out == "half\nhalf\n"
    assert captured.err.count("Error: The server hung up.") == 2
    assert said(repl) == [("u", "a")]


@pytest.mark.parametrize("line", ["top-p 0.5", "top_p=0.5", "top_p = 0.5", "top_p   0.5"])
def test_set_prints_the_new_value(fake_llm: Any, capsys: pytest.CaptureFixture[str], line: str) -> None:
    repl = chat(fake_llm(), f"/set {line}", '/set stop "a=b"')
    assert capsys.readouterr().err == "[top_p: 0.5]\n[stop: 'a=b']\n"
    assert repl.conversation.sampling == {"top_p": 0.5, "stop": "a=b"}


def test_settings_without_effect_in_a_chat_are_not_offered(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    others = {"n", "prompt_logprobs", "structured_outputs", "is_plain", "looks_back"}
    chat(fake_llm("answer"), "/set")
    shown = {line.split()[0] for line in capsys.readouterr().err.splitlines()}
    assert "temperature" in shown
    assert not shown & others
    chat(fake_llm("answer"), *(f"/set {name} 2" for name in others))
    assert capsys.readouterr().err.count("There is no setting") == len(others)
