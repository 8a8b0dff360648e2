"""A logits processor: no phrase of the book is ever finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind_phrases import book

__all__ = ["AvoidPhrases"]


class AvoidPhrases:
    """Forbids the last token of a phrase whose other tokens are there. `extra_args={"phrases": […]}` adds some."""

    def __init__(self, params: Any, tokenizer: Any) -> None:
        """The processor of one request."""
        more = (params.extra_args or {}).get("phrases", [])
        if not isinstance(more, list) or not all(isinstance(phrase, str) for phrase in more):
            raise InvalidArgumentError("extra_args['phrases'] should be a list of texts.")
        self._rests = book.continuations([*book.read(), *more], tokenizer.encode)

    def __call__(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int], logits: Any) -> None:
        """Change a row of logits, float32 [V]."""
        for beginning, rest in self._rests.items():
            if len(rest) == 1 and tuple(output_token_ids[-len(beginning) :]) == beginning:
                logits[rest[0]] = float("-inf")
