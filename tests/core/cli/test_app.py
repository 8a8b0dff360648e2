"""The command line: help, exit codes, error messages and imports."""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from aethermind.cli import commands
from aethermind.cli.app import app
from aethermind.errors import DeviceError

COMMANDS = (
    (),
    ("generate",),
    ("chat",),
    ("serve",),
    ("run-batch",),
    ("run",),
    ("ps",),
    ("pull",),
    ("doctor",),
    ("explain",),
    ("models",),
    ("tokenize",),
    ("detokenize",),
    ("ops",),
    ("profile",),
    ("conform",),
    ("simulate",),
    ("completion",),
    ("plugin",),
    ("plugin", "new"),
    ("quantize",),
    ("plugins",),
    ("plugins", "list"),
    ("plugins", "new"),
    ("sessions",),
    ("sessions", "list"),
    ("sessions", "save"),
    ("sessions", "load"),
    ("sessions", "delete"),
    ("sessions", "protect"),
    ("cache",),
    ("cache", "list"),
    ("cache", "clear"),
    ("tools",),
    ("tools", "check"),
    ("bench",),
    ("bench", "latency"),
    ("bench", "limits"),
    ("bench", "prefill-stream"),
    ("bench", "quality"),
    ("bench", "serve"),
)


def example_lines(help_text: str) -> list[str]:
    return [line.strip() for line in help_text.partition("Examples:")[2].splitlines() if line.strip()]


@pytest.mark.parametrize("verb", COMMANDS, ids=lambda verb: " ".join(verb) or "aethermind")
def test_help_has_examples_that_parse(invoke: Any, verb: tuple[str, ...]) -> None:
    result = invoke(*verb, "--help")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    lines = example_lines(result.stdout)
    assert lines
    for line in lines:
        words = shlex.split(re.split(r"\| |&& ", line)[-1])
        assert words[0] == "aethermind"
        assert words[1 : 1 + len(verb)] == list(verb)
        parse(words[1:])


def parse(words: list[str]) -> None:
    """Parse a command to the end of its options without running it; raises where it is wrong."""
    command: Any = typer.main.get_group(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("example", words)


def test_every_verb_is_covered() -> None:
    root: Any = typer.main.get_group(app)
    found = {()}
    for name, command in root.commands.items():
        found.add((name,))
        found.update((name, inner) for inner in getattr(command, "commands", ()))
    assert found == set(COMMANDS)


def test_summaries_of_verbs_match_their_help() -> None:
    for name, command in typer.main.get_group(app).commands.items():
        assert (command.help or "").startswith(commands.COMMANDS[name].summary)


@pytest.mark.parametrize("group", ["plugins", "cache"])
def test_a_group_without_a_command_lists(
    invoke: Any, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the reader's own cache may hold anything
    bare, listed = invoke(group), invoke(group, "list")
    assert bare.exit_code == 0
    assert [line.split()[0] for line in bare.stdout.splitlines()] == [
        line.split()[0] for line in listed.stdout.splitlines()
    ]


def test_version(invoke: Any) -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert re.fullmatch(r"aethermind \d+\.\d+\.\d+\S*\n", result.stdout)


@pytest.mark.parametrize(
    "args", [("frobnicate",), ("generate", "hi", "--frobnicate"), ("generate", "hi", "--top-p", "x")]
)
def test_unknown_words_are_usage_errors(invoke: Any, args: tuple[str, ...]) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("chat", "demo", "hello"), "Got unexpected extra arguments (hello)."),
        (("chat", "demo", "-m", "demo"), "A model is given with --model and one without it"),
        (("generate", "Once", "upon"), "Put a text of several words in quotes."),
        (("tokenize", "Once", "upon", "a"), "Put a text of several words in quotes."),
        (("bench", "limits", "x"), "Got unexpected extra arguments (x)."),
    ],
)
def test_extra_arguments_are_an_error_with_a_hint(invoke: Any, args: tuple[str, ...], hint: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split())


def test_expected_errors_are_sentences(invoke: Any, fake_llm: Any) -> None:
    fake_llm(DeviceError("The device caught fire. Put it out."))
    result = invoke("generate", "hi")
    assert result.exit_code == 2
    assert result.stderr == "Error: The device caught fire. Put it out.\n"


def test_unexpected_errors_are_reported_as_bugs_and_debug_shows_the_traceback(
    invoke: Any, fake_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_llm(ZeroDivisionError("oh"))
    result = invoke("generate", "hi")
    assert result.exit_code == 1
    assert "ZeroDivisionError: oh" in result.stderr
    assert "AETHERMIND_LOG=debug" in result.stderr
    monkeypatch.setenv("AETHERMIND_LOG", "debug")
    assert isinstance(invoke("generate", "hi").exception, ZeroDivisionError)


def imported_by(*args: str) -> set[str]:
    """The modules that a command line has imported when it ends."""
    program = (
        f"import sys; sys.argv = ['aethermind', *{args!r}]\n"
        "from aethermind.cli import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr.split()
    )


def test_help_imports_nothing_heavy() -> None:
    modules = imported_by("--help")
    assert "aethermind.cli.app" in modules
    assert not modules & {"numpy", "rich", "tokenizers", "jinja2", "pydantic", "torch", "aethermind.llm"}
    assert not modules & {f"aethermind.cli.{verb.module}" for verb in commands.COMMANDS.values()}


def test_a_verb_imports_no_other() -> None:
    modules = imported_by("tokenize", "--help")
    assert [verb.module for verb in commands.COMMANDS.values() if f"aethermind.cli.{verb.module}" in modules] == [
        "tokens"
    ] * 2


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("sys.exit('no')", 1), ("1 / 0", 1), ("pass", 0)])
def test_the_fast_exit_keeps_threads_handlers_output_and_exit_code(end: str, code: int) -> None:
    """Threads, what was registered for the end, output that was not flushed, and the exit code."""
    program = f"""
import atexit, sys, threading
import aethermind.cli.app
from aethermind.cli import main
def late():
    threading.main_thread().join()
    print("thread")
def run():
    atexit.register(print, "registered")
    print("ran")
    threading.Thread(target=late).start()
    {end}
aethermind.cli.app.run = run
main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout.split()) == (code, ["ran", "thread", "registered"])
    assert ("ZeroDivisionError" in result.stderr) == (end == "1 / 0")


def test_module_runs_as_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "aethermind", "generate", "hi", "--temperature", "-1"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr.startswith("Error: temperature is -1.0")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_handled(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m aethermind tokenize hi {closed}"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, "rror" in result.stderr) == (0, False)


@pytest.mark.parametrize("words", [("tokenize", "hi"), ("plugins", "list", "--json")])
def test_a_closed_pipe_ends_a_command_with_141(words: tuple[str, ...]) -> None:
    """As a shell tells a death by SIGPIPE."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "aethermind", *words]
    with os.fdopen(write_end, "w") as output:
        result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert (result.returncode, "rror" in result.stderr) == (141, False)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "Standard output cannot be written: No space left on device."),
        (errno.ENOMEM, "The operating system reports an error: Cannot allocate memory."),
        (errno.ENOENT, "The working directory cannot be used: No such file or directory."),
    ],
)
def test_errors_of_the_system_are_sentences(
    invoke: Any, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("aethermind.cli.console.print_json", fail)
    result = invoke("plugins", "list", "--json")
    assert result.exit_code == 2
    assert says in result.stderr
