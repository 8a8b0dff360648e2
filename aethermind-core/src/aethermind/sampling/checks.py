"""Checks of single user-supplied values; each InvalidArgumentError gives the allowed values and a correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import NoReturn

from aethermind.errors import InvalidArgumentError

__all__ = ["boolean", "integer", "number", "optional", "refuse", "strings", "token_ids"]

MAX_STRING_CHARS = 4096
"""The longest stop string or bad word: each is tokenised or searched for while other requests wait."""


def number(name: str, value: object, lowest: float, highest: float, way_out: str, *, is_above: bool = False) -> float:
    """Return a finite number from `lowest`, itself excluded if `is_above`, to `highest`."""
    result = math.nan
    if isinstance(value, (float, int, Real)) and not isinstance(value, bool):  # `Real` alone is slow to check
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
    is_low = result <= lowest if is_above else result < lowest
    if is_low or result > highest or not math.isfinite(result):
        upper = "" if highest == math.inf else f" and at most {highest:g}"
        refuse(name, value, f"a finite number {'above' if is_above else 'of at least'} {lowest:g}{upper}", way_out)
    return result


def integer(name: str, value: object, lowest: int, highest: int | None, way_out: str) -> int:
    """Return an integer from `lowest` to `highest`, both included."""
    if isinstance(value, (int, Integral)) and not isinstance(value, bool):
        result = int(value)
        if lowest <= result and (highest is None or result <= highest):
            return result
    allowed = f"an integer of at least {lowest}" if highest is None else f"an integer from {lowest} to {highest}"
    refuse(name, value, allowed, way_out)


def optional(name: str, value: object, lowest: int, highest: int | None, way_out: str) -> int | None:
    """Return an integer like `integer`, or None."""
    return None if value is None else integer(name, value, lowest, highest, way_out)


def boolean(name: str, value: object) -> bool:
    """Return a bool; numbers are not accepted."""
    return value if isinstance(value, bool) else refuse(name, value, "True or False", "leave it out for False")


def strings(name: str, value: object, most: int, way_out: str) -> tuple[str, ...]:
    """Return at most `most` non-empty strings of at most MAX_STRING_CHARS; a string counts as one, None as none."""
    allowed = "a non-empty string or a sequence of them"
    if value is None:
        return ()
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence):
        refuse(name, value, allowed, way_out)
    if len(given) > most:
        raise InvalidArgumentError(
            f"{name} has {len(given)} strings but must have at most {most}; keep the vital ones."
        )
    for string in given:
        if not isinstance(string, str) or not string:
            refuse(name, string, allowed, way_out)
        if len(string) > MAX_STRING_CHARS:
            raise InvalidArgumentError(
                f"{name} has a string of {len(string)} characters but each may have {MAX_STRING_CHARS}; shorten it."
            )
    return tuple(given)


def token_ids(name: str, value: object, most: int | None) -> tuple[int, ...]:
    """Return at most `most` token ids; None counts as none."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        refuse(name, value, "a sequence of token ids", "put a single id in a list")
    if most is not None and len(value) > most:
        raise InvalidArgumentError(f"{name} has {len(value)} ids but must have at most {most}; keep the vital ones.")
    return tuple(integer(name, token_id, 0, 2**31 - 1, "take ids from the model's vocabulary") for token_id in value)


def refuse(name: str, value: object, allowed: str, way_out: str) -> NoReturn:
    """Raise InvalidArgumentError for a value, with what is allowed and how to correct it."""
    raise InvalidArgumentError(f"{name} is {value!r:.80} but must be {allowed}; {way_out}.")
