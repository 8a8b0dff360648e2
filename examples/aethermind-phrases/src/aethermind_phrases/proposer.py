"""A proposer for speculative decoding: drafts the rest of a phrase that was begun. The model verifies drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.engine.speculative import Request
from aethermind_phrases import book

__all__ = ["PhraseProposer"]


class PhraseProposer:
    """Drafts the rest of a phrase; stateless."""

    def __init__(self, compiled: Any) -> None:
        """`compiled` is the model that verifies the drafts."""
        self._continuations = book.continuations(book.read(), compiled.source.tokenizer().encode)
        self._lengths = sorted({len(prefix) for prefix in self._continuations}, reverse=True)

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        """Draft up to `limits` tokens per request; none where its text does not end within a phrase."""
        return [
            self._continuation(request.all_token_ids, limit) for request, limit in zip(requests, limits, strict=True)
        ]

    def forget(self, request_id: str) -> None:
        """No state to drop."""

    def _continuation(self, tokens: Sequence[int], limit: int) -> list[int]:
        matches = (
            self._continuations.get(tuple(tokens[-length:])) for length in self._lengths if length <= len(tokens)
        )
        return list(next(filter(None, matches), ()))[:limit]
