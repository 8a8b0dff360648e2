"""`aethermind completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import Annotated

import typer

from aethermind.cli import console
from aethermind.cli.commands import COMPLETION_VARIABLE

__all__ = ["EXAMPLES", "completion"]

EXAMPLES = console.examples("aethermind completion bash", "aethermind completion zsh", "aethermind completion fish")


class Shell(str, Enum):  # noqa: UP042 (typer takes its value for the text of an option)
    """The supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that the script is for.")]) -> None:
    """Print a script for tab completion in bash, zsh or fish.

    In the running bash: source <(aethermind completion bash). For every new shell, write it to
    ~/.local/share/bash-completion/completions/aethermind (bash), to ~/.config/fish/completions/aethermind.fish (fish),
    or to a file _aethermind in a folder of fpath (zsh, before compinit runs).
    """
    scripts = import_module("typer.completion")
    print(
        scripts.get_completion_script(
            prog_name="aethermind", complete_var=COMPLETION_VARIABLE, shell=shell.value
        ).strip()
    )
