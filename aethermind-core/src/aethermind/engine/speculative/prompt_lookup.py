"""Prompt lookup decoding (Saxena, 2023): drafts are the tokens that followed an earlier occurrence of
the last n-gram.

It needs no second model, and is accurate where outputs quote the prompt: summaries, edited code, questions about a
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.requests.request import Request

__all__ = ["NgramIndex", "PromptLookup"]


class NgramIndex:
    """An incremental index of the n-grams of `shortest` to `longest` tokens of a growing token sequence."""

    __slots__ = ("_ends", "_lengths", "_num_indexed")

    def __init__(self, longest: int, shortest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def continuation(self, tokens: Sequence[int], max_tokens: int) -> list[int]:
        """Return up to `max_tokens` tokens after the latest occurrence of the longest n-gram at the end of `tokens`.

        A continuation that reaches the end of `tokens` starts again after the occurrence, so a periodic text is
        continued periodically.
        """
        self._index(tokens)
        for length in self._lengths:
            end = self._ends.get(tuple(tokens[-length:])) if length < len(tokens) else None
            if end is not None:
                period = len(tokens) - end
                return [tokens[end + offset % period] for offset in range(max_tokens)]
        return []

    def _index(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that end before the last token; only these have a continuation."""
        ends = self._ends
        for end in range(self._num_indexed + 1, len(tokens)):
            for length in self._lengths:
                if length <= end:
                    ends[tuple(tokens[end - length : end])] = end
        self._num_indexed = max(self._num_indexed, len(tokens) - 1)


class PromptLookup:
    """A proposer that searches the prompt and output of the request itself."""

    def __init__(self, compiled: CompiledModel) -> None:
        config = compiled.config
        self._lengths = (config.prompt_lookup_max, config.prompt_lookup_min)
        self._indices: dict[str, NgramIndex] = {}

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        """Return the continuation of the latest occurrence of the longest matching n-gram of each request."""
        drafts = []
        for request, max_tokens in zip(requests, limits, strict=True):
            index = self._indices.get(request.request_id)
            if index is None:
                index = self._indices[request.request_id] = NgramIndex(*self._lengths)
            drafts.append(index.continuation(request.all_token_ids, max_tokens))
        return drafts

    def forget(self, request_id: str) -> None:
        """Drop the request's index."""
        self._indices.pop(request_id, None)
