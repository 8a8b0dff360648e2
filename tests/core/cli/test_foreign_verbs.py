"""Verbs of Ollama, vLLM and others are answered with the equivalent command."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from aethermind.cli.app import app
from aethermind.cli.commands import VERBS
from aethermind.cli.foreign_verbs import FOREIGN_VERBS, command_for


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("run",), "aethermind chat MODEL"),
        (("run", "./llama", "Why", "so?"), "aethermind generate --model ./llama 'Why so?'"),
        (("run", "./a model"), "aethermind chat './a model'"),
        (("pull", "Qwen/Qwen3-0.6B"), "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"),
        (("list",), "aethermind models"),
        (("ps",), "curl http://127.0.0.1:8000/v1/models"),
        (("show", "./llama", "--verbose"), "aethermind models ./llama"),
        (("rm", "./llama"), "rm -r ./llama"),
        (("version",), "aethermind --version"),
        (("help", "chat"), "aethermind chat --help"),
        (("launch_server", "demo"), "aethermind serve demo"),
    ],
)
def test_the_command_to_type(invoke: Any, words: tuple[str, ...], typed: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: There is no command {words[0]!r} here. Type `{typed}`")
    assert len(result.stderr.splitlines()) == 1


def test_every_suggested_command_parses() -> None:
    assert len(FOREIGN_VERBS) >= 10
    assert not FOREIGN_VERBS.keys() & VERBS.keys()
    root: Any = typer.main.get_group(app)
    for verb in FOREIGN_VERBS:
        for command in re.findall(r"`aethermind (.*?)`", str(command_for(verb, ["a/b"]))):
            name, *rest = shlex.split(command)
            assert name in VERBS or name.startswith("-") or name == "a/b", command
            if name in VERBS and "--help" not in rest and not hasattr(root.commands[name], "commands"):
                root.commands[name].make_context(name, rest)
    assert command_for("frobnicate", []) is None


def test_a_plugin_s_verb_has_precedence_over_the_suggestion(invoke: Any, install_plugin: Any) -> None:
    source = """
    from aethermind.plugins import hookimpl

    @hookimpl
    def register_commands(app):
        @app.command("pull")
        def pull() -> None:
            "Pull."
            print("pulled")
    """
    install_plugin("puller", source)
    assert invoke("pull").stdout == "pulled\n"


def test_the_short_flag_for_the_version(invoke: Any) -> None:
    assert invoke("-V").stdout == invoke("--version").stdout
