"""What a field of a published file does here: it is used, ignored on purpose, not applied, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Fate", "Field", "FieldTable", "ignored", "not_applied", "refused", "used"]


class Fate(StrEnum):
    """What becomes of a field."""

    USED = "used"
    """Its value changes what is computed."""
    IGNORED = "ignored"
    """No value of it changes an answer here."""
    NOT_APPLIED = "not applied"
    """It asks for something that is not done; the model answers without, after a warning."""
    REFUSED = "refused"
    """It asks for something without which the model's answers would be wrong."""


@dataclass(frozen=True, slots=True)
class Field:
    """`text` says how a field is used, why it is ignored, or what to do instead; `neutral` values ask for nothing."""

    fate: Fate
    text: str
    neutral: tuple[Any, ...] = (None,)

    def asks(self, value: Any) -> bool:
        """Whether a value asks for something."""
        return not any(value == one and type(value) is type(one) for one in self.neutral)


FieldTable = Mapping[str, Field]
"""Fields of one file by name."""


def used(text: str, *names: str) -> dict[str, Field]:
    """Fields that are used."""
    return {name: Field(Fate.USED, text) for name in names}


def ignored(text: str, *names: str) -> dict[str, Field]:
    """Fields of which no value changes an answer."""
    return {name: Field(Fate.IGNORED, text) for name in names}


def not_applied(text: str, **neutral: Any) -> dict[str, Field]:
    """Fields with the values that ask for nothing, one or a tuple of them, beside null."""
    return {name: Field(Fate.NOT_APPLIED, text, (None, *_listed(value))) for name, value in neutral.items()}


def refused(text: str, **neutral: Any) -> dict[str, Field]:
    """The same for fields that are refused."""
    return {name: Field(Fate.REFUSED, text, (None, *_listed(value))) for name, value in neutral.items()}


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
