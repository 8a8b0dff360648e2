"""Text from where people put it: an argument, standard input or a file."""

from __future__ import annotations

import sys
from pathlib import Path

from aethermind.errors import InvalidArgumentError

__all__ = ["read_text"]

_BYTE_ORDER_MARK = "\ufeff"
"""With which some programs begin files to say that they are UTF-8; it is no part of the text."""


def read_text(text: str | None, file: Path | None, *, noun: str, option: str) -> str:
    """The text, without the newline that ends a file; `-` is standard input. There must be exactly one source.

    Messages call the text `noun` and name `option` as the way to pass a file. Raises InvalidArgumentError.
    """
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
