"""`aethermind run`: Ollama's name of `aethermind chat`, which downloads a model at its first use."""

from __future__ import annotations

from functools import wraps
from inspect import getdoc
from typing import Any

from aethermind.cli import console
from aethermind.cli.chat import chat

__all__ = ["EXAMPLES", "run"]

EXAMPLES = console.examples(
    "aethermind run demo",
    "aethermind run Qwen/Qwen2.5-0.5B-Instruct",
)


@wraps(chat)
def run(**given: Any) -> None:
    chat(**given)


run.__name__ = "run"
run.__doc__ = f"Download a model if it is not here, and chat with it.\n\nThe same as chat. {getdoc(chat)}"
