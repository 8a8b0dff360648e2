"""Whether token ids that a client gives are those of the model."""

from __future__ import annotations

from collections.abc import Collection

from aethermind.server.openai.errors import ApiError

__all__ = ["check_token_ids"]


def check_token_ids(token_ids: Collection[int], vocab_size: int, field: str) -> None:
    """ApiError 400 that names `field` where one of its ids is none."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(one for one in token_ids if not 0 <= one < vocab_size)
        raise ApiError(
            400,
            f"{field} has the token id {min(wrong, 2**63)}, which is out of range: the vocabulary has {vocab_size} "
            "entries, numbered from 0.",
            param=field,
            code="invalid_value",
        )
