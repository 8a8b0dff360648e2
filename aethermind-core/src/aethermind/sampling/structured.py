"""What an answer must look like: one of five ways to say it, as people write them. Names are vLLM's."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind.python_api import document_fields, short_traceback
from aethermind.sampling.checks import boolean

__all__ = ["MAX_CHOICES", "MAX_GRAMMAR_CHARS", "StructuredOutputs"]

MAX_GRAMMAR_CHARS = 256 * 1024
"""The longest schema, regex or grammar, and the most that choices hold together, in characters."""

MAX_CHOICES = 4096
"""The most choices that a request may offer."""

_WAYS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True, init=False)
class StructuredOutputs:
    """A demand on the text of an answer. Exactly one of the fields is set; InvalidArgumentError otherwise.

    Whether it can be kept is known when a request is made: it depends on the library and on the tokenizer.
    """

    json: str | None
    """A JSON schema, as text: the answer is a document that it describes, on one line."""
    regex: str | None
    """A regular expression (of Rust's regex crate) that the whole answer matches."""
    choice: tuple[str, ...] | None
    """The answer is one of these strings."""
    grammar: str | None
    """A grammar in llguidance's kind of Lark, or in llama.cpp's GBNF."""
    json_object: bool
    """The answer is some JSON object."""

    @short_traceback
    def __init__(
        self,
        json: str | Mapping[str, Any] | bool | None = None,
        regex: str | None = None,
        choice: Sequence[str] | None = None,
        grammar: str | None = None,
        json_object: bool = False,
    ) -> None:
        values = {
            "json": None if json is None else _schema(json),
            "regex": _text("regex", regex),
            "choice": None if choice is None else _choices(choice),
            "grammar": _text("grammar", grammar),
            "json_object": boolean("json_object", json_object),
        }
        given = [name for name in _WAYS if values[name] not in (None, False)]
        if len(given) != 1:
            raise InvalidArgumentError(
                f"Structured outputs take one of {', '.join(_WAYS)}, and {' and '.join(given) or 'none'} was given. "
                "Keep one of them."
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)


document_fields(StructuredOutputs)


def _schema(value: object) -> str:
    """The schema as compact text, in the order of its keys, which is that of the properties in answers."""
    try:
        schema = json_module.loads(value) if isinstance(value, str) else value
        text = json_module.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()
    except RecursionError:
        raise InvalidArgumentError("The JSON schema is nested too deeply; write its inner parts as $defs.") from None
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"The JSON schema is no JSON: {error}. Pass a mapping or its text.") from None
    if not isinstance(schema, Mapping | bool):
        raise InvalidArgumentError(f"A JSON schema is an object, got {text:.80}. Pass a mapping or its text.")
    _check_length("json", text)
    return text


def _text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{name} is {value!r:.80} but must be a non-empty string; leave it out otherwise.")
    _check_length(name, value)
    return value


def _choices(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidArgumentError(f"choice is {value!r:.80} but must be a list of strings; give one or more.")
    if not all(isinstance(text, str) and text for text in value):
        raise InvalidArgumentError(f"choice is {value!r:.80} but holds something else than non-empty strings.")
    if len(value) > MAX_CHOICES:
        raise InvalidArgumentError(f"choice has {len(value)} strings but must have at most {MAX_CHOICES}.")
    _check_length("choice", "".join(value))
    return tuple(value)


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidArgumentError(
            f"{name} has {len(text)} characters but must have at most {MAX_GRAMMAR_CHARS}; make it simpler."
        )
