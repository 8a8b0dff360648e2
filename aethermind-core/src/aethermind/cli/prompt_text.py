"""Text from where people put it: an argument, standard input or a file."""

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

__all__ = ["doubt_prompt", "looks_like_model", "read_text"]

_MODEL = re.compile(r"(\.{0,2}|~)/\S*|[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|\S+\.(gguf|safetensors)", re.ASCII)
"""A path, a name as of the Hugging Face Hub, or a file of weights."""

_BYTE_ORDER_MARK = "\ufeff"
"""With which some programs begin files to say that they are UTF-8; it is no part of the text."""


def read_text(text: str | None, file: Path | None, *, noun: str, option: str) -> str:
    """The text, without the newline that ends a file; `-` is standard input. There must be at most one source.

    Without any it is what is piped into the command.

    Messages call the text `noun` and name `option` as the way to pass a file. Raises InvalidArgumentError.
    """
    if text is None and file is None and _is_fed(sys.stdin):
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
    """Whether a text is more likely meant as the name or the path of a model than as something to read."""
    return bool(_MODEL.fullmatch(text)) or (len(text) < 256 and "\0" not in text and os.path.isdir(text))


def doubt_prompt(text: str | None, verb: str, *, model: str | None, chosen: str) -> None:
    """Say on stderr that a text that looks like a model is taken as a text, unless a model was given as well."""
    if text is not None and model is None and text != "-" and looks_like_model(text):
        console.aside(
            f"[{text} is taken as the text, for the model {chosen}. "
            f'To name a model: aethermind {verb} --model {shlex.quote(text)} "Once upon a time"]'
        )


def _is_fed(stream: TextIO) -> bool:
    """Whether a program or a file is what can be read from a stream, rather than a person or nothing."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
