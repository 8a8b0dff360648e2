"""`aethermind completion`: the script with which a shell completes this command line."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import Annotated

import typer

from aethermind.cli import console
from aethermind.cli.option_values import VARIABLE

__all__ = ["EXAMPLES", "completion"]

EXAMPLES = console.examples("aethermind completion bash", "aethermind completion zsh", "aethermind completion fish")


class Shell(str, Enum):  # noqa: UP042 (typer takes its value for the text of an option)
    """Shells that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that the script is for.")]) -> None:
    """Print a script that completes verbs, options and values in a shell.

    For the running bash: source <(aethermind completion bash). For every new one write it to
    ~/.local/share/bash-completion/completions/aethermind, for fish to ~/.config/fish/completions/aethermind.fish, and
    for zsh to _aethermind in a folder that fpath names before compinit runs.
    """
    scripts = import_module("typer.completion")
    print(scripts.get_completion_script(prog_name="aethermind", complete_var=VARIABLE, shell=shell.value).strip())
