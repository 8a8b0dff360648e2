"""Commands of Ollama, vLLM and others are answered with the equivalent command."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from aethermind.cli.app import app
from aethermind.cli.commands import COMMANDS, EQUIVALENTS, equivalent_command


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("cli", "./a model"), "aethermind run './a model'"),
        (("download", "Qwen/Qwen3-0.6B"), "aethermind pull Qwen/Qwen3-0.6B"),
        (("list",), "aethermind models list"),
        (("show", "./llama", "--verbose"), "aethermind models show ./llama"),
        (("rm", "org/llama"), "aethermind models rm org/llama"),
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
    assert len(EQUIVALENTS) >= 10
    assert not EQUIVALENTS.keys() & COMMANDS.keys()
    root: Any = typer.main.get_group(app)
    for name_there in EQUIVALENTS:
        for command in re.findall(r"`aethermind (.*?)`", str(equivalent_command(name_there, ["a/b"]))):
            name, *rest = shlex.split(command)
            assert name in COMMANDS or name.startswith("-") or name == "a/b", command
            if name in COMMANDS and "--help" not in rest and not hasattr(root.commands[name], "commands"):
                root.commands[name].make_context(name, rest)
    assert equivalent_command("frobnicate", []) is None


def test_a_command_of_a_plugin_has_precedence_over_the_suggestion(invoke: Any, install_plugin: Any) -> None:
    source = """
    from aethermind.plugins import hookimpl

    @hookimpl
    def register_commands(app):
        @app.command("show")
        def show() -> None:
            "Show."
            print("shown")
    """
    install_plugin("shower", source)
    assert invoke("show").stdout == "shown\n"


def test_the_short_flag_for_the_version(invoke: Any) -> None:
    assert invoke("-V").stdout == invoke("--version").stdout
