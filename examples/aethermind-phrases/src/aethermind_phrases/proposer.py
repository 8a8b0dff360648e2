"""A proposer: whoever has begun a phrase will go on with it. What it drafts is checked by the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.engine.speculative import Request
from aethermind_phrases import book

__all__ = ["PhraseProposer"]


class PhraseProposer:
    """Drafts the rest of a phrase. It keeps nothing about requests."""

    def __init__(self, planned: Any) -> None:
        """`planned` is the model that will check."""
        self._rests = book.continuations(book.read(), planned.source.tokenizer().encode)
        self._lengths = sorted({len(beginning) for beginning in self._rests}, reverse=True)

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        """For each request up to so many tokens; none where its text does not end within a phrase."""
        return [self._rest(request.all_token_ids, most) for request, most in zip(requests, limits, strict=True)]

    def forget(self, request_id: str) -> None:
        """There is nothing to forget."""

    def _rest(self, tokens: Sequence[int], most: int) -> list[int]:
        found = (self._rests.get(tuple(tokens[-length:])) for length in self._lengths if length <= len(tokens))
        return list(next(filter(None, found), ()))[:most]
