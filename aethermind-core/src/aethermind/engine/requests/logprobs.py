"""Log probabilities of tokens, as a step's graph reports them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TokenLogprobs", "read_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities of one step, before temperature and penalties: the chosen token's, and the most likely ones
    in order.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def read_logprobs(columns: Sequence[np.ndarray[Any, Any]], wanted: Sequence[int | None]) -> list[TokenLogprobs | None]:
    """Those of a finished run out of its LOGPROB_OUTPUTS, with as many of the most likely tokens as each row wants;
    None where it is None.
    """
    found: list[TokenLogprobs | None] = []
    lists = (column.tolist() for column in columns)
    for num_top, logprob, rank, ids, values in zip(wanted, *lists, strict=True):
        if num_top is None:
            found.append(None)
            continue
        top = tuple((token, value) for token, value in zip(ids, values, strict=True) if token >= 0)
        found.append(TokenLogprobs(logprob, rank, top[:num_top]))
    return found
