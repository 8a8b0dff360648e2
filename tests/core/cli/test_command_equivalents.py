"""Commands of Ollama, vLLM and others are answered with the equivalent command."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from aethermind.cli.app import app
from aethermind.cli.command_equivalents import EQUIVALENTS, equivalent_command
from aethermind.cli.commands import COMMANDS


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
        @app.command("pull")
        def pull() -> None:
            "Pull."
            print("pulled")
    """
    install_plugin("puller", source)
    assert invoke("pull").stdout == "pulled\n"


def test_the_short_flag_for_the_version(invoke: Any) -> None:
    assert invoke("-V").stdout == invoke("--version").stdout
