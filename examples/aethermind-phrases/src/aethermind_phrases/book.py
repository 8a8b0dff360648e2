"""The book: a text file with a phrase on each line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from aethermind.errors import InvalidArgumentError

__all__ = ["continuations", "path", "read"]


def path() -> Path:
    """The file of `AETHERMIND_PHRASES`, by default the package's."""
    return Path(os.environ.get("AETHERMIND_PHRASES") or Path(__file__).with_name("phrases.txt"))


def read() -> list[str]:
    """Read the phrases; InvalidArgumentError if the file cannot be read."""
    try:
        lines = path().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"The book of phrases {path()} cannot be read: {error}. Set AETHERMIND_PHRASES to a text file, or unset it."
        ) from None
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def continuations(
    phrases: Sequence[str], encode: Callable[[str], Sequence[int]]
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Map the first tokens of a phrase (at least two) to the others, for phrases within a sentence and at its start."""
    result: dict[tuple[int, ...], tuple[int, ...]] = {}
    for phrase in phrases:
        for written in (f" {phrase}", phrase, phrase[:1].upper() + phrase[1:], f" {phrase[:1].upper()}{phrase[1:]}"):
            tokens = tuple(encode(written))
            result |= {tokens[:end]: tokens[end:] for end in range(2, len(tokens))}
    return result
