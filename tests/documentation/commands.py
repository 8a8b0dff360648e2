"""The commands that people are shown, in `console` blocks and under Examples on help pages, and where they run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from aethermind.cli.app import app

__all__ = ["ROOT", "environment", "help_commands", "page_commands"]

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OF_A_CLONE = re.compile(r"(make|python3|\.venv/bin/\w+|pip|source \.venv/bin/activate)( |$)")
"""Commands that make the environment the tests run in."""


def page_commands(page: Path) -> list[str]:
    """What a reader would type, in order; lines that end in a backslash go on."""
    text = "\n".join(_BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", "")
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return [command for command in commands if not _OF_A_CLONE.match(command)]


def help_commands() -> list[str]:
    """Every example of every verb, the program itself among them."""
    found = dict.fromkeys(
        example for command in _commands(typer.main.get_command(app)) for example in _examples(command)
    )
    return list(found)


def environment(folder: Path) -> dict[str, str]:
    """The variables of a reader whose home is this folder and who has activated this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AETHERMIND_") and name != "XDG_CACHE_HOME"  # commands clear the reader's cache
    }
    return {**others, "PATH": path, "HOME": str(folder)}


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from _commands(child)


def _examples(command: Any) -> list[str]:
    _, _, listed = (command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in listed.splitlines() if line.strip()]
