"""Input texts from an argument, standard input or a file."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from pathlib import Path
from typing import TextIO

from aethermind.cli import console
from aethermind.errors import InvalidArgumentError
from aethermind.model.hub_files import HubName

__all__ = [
    "looks_like_model",
    "note_if_prompt_looks_like_model",
    "read_text",
]

_MODEL = re.compile(r"(\.{0,2}|~)/\S*|\S+\.(gguf|safetensors)", re.ASCII)
"""A path, or a file of weights."""

_BYTE_ORDER_MARK = "\ufeff"
"""Marks UTF-8 at the beginning of a file; it is not part of the text."""


def read_text(text: str | None, file: Path | None, *, noun: str, option: str) -> str:
    """Read a text without its final newline; `-` is standard input, which is also read if it is piped in.

    InvalidArgumentError for no source or two, and for a file that cannot be read. In messages, `noun` is the word for
    the text, and `option` is how a file is passed.
    """
    if text is None and file is None and _is_piped(sys.stdin):
        text = "-"
    if (text is None) == (file is None):
        found = f"no {noun}" if text is None else f"two {noun}s"
        raise InvalidArgumentError(f"Found {found}. Give one as an argument, as - for standard input, or as {option}.")
    if text is not None and text != "-":
        return text
    try:
        raw = sys.stdin.buffer.read() if file is None else file.read_bytes()
        return raw.decode().removeprefix(_BYTE_ORDER_MARK).removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InvalidArgumentError(
            f"{noun.capitalize()} file {file} cannot be read: {error.strerror}. Pass another one."
        ) from None
    except UnicodeDecodeError as error:
        name = file or "from standard input"
        raise InvalidArgumentError(
            f"The {noun} {name} is not UTF-8 text (byte {error.start}). Convert it first."
        ) from None


def looks_like_model(text: str) -> bool:
    """Whether a text has the form of a model's name or path."""
    if _MODEL.fullmatch(text) or HubName.parse(text) is not None:
        return True
    return len(text) < 256 and "\0" not in text and os.path.isdir(text)


def note_if_prompt_looks_like_model(text: str | None, command: str, *, model: str | None, chosen: str) -> None:
    """Print a note if a text looks like a model's name but is used as text, unless a model is given, too."""
    if text is not None and model is None and text != "-" and looks_like_model(text):
        console.print_note(
            f"[{text} is taken as the text, for the model {chosen}. "
            f'To name a model: aethermind {command} --model {shlex.quote(text)} "Once upon a time"]'
        )


def _is_piped(stream: TextIO) -> bool:
    """Whether a stream reads from a pipe or a file."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
