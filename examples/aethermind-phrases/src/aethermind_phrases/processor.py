"""A logits processor that never lets a phrase of the book be completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind_phrases import book

__all__ = ["AvoidPhrases"]


class AvoidPhrases:
    """Masks the last token of a phrase whose other tokens were generated. `extra_args={"phrases": […]}` adds
    phrases.
    """

    def __init__(self, params: Any, tokenizer: Any) -> None:
        """Create the processor of one request."""
        extra = (params.extra_args or {}).get("phrases", [])
        if not isinstance(extra, list) or not all(isinstance(phrase, str) for phrase in extra):
            raise InvalidArgumentError("extra_args['phrases'] should be a list of texts.")
        self._continuations = book.continuations([*book.read(), *extra], tokenizer.encode)

    def __call__(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int], logits: Any) -> None:
        """Modify a row of logits, float32 [V], in place."""
        for prefix, continuation in self._continuations.items():
            if len(continuation) == 1 and tuple(output_token_ids[-len(prefix) :]) == prefix:
                logits[continuation[0]] = float("-inf")
