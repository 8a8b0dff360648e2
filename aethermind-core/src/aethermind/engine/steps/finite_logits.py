"""Whether what a model computed is made of numbers: NaN and infinity end a request instead of becoming its text.

A number that is none in a hidden state is in every logit behind it, so the logit of the chosen token tells of all. It
is looked at where the host reaches it: a value a row, for less than reading the token takes. Where it would have to be
copied from a device with every step, log probabilities tell where they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NOT_FINITE", "rows_without_number"]

NOT_FINITE = "the model's logits are not finite: try dtype='float32', or fetch the weights again"
"""Why a request has no next token, as the end of a sentence."""


def rows_without_number(values: np.ndarray[Any, Any], token_ids: Sequence[int]) -> list[int]:
    """The rows in whose values, [R, V] or more rows, the token's is NaN or infinity, or stands for nothing.

    What a row holds back is -inf, so a token with that is none of a row's either, unless it has no other.
    """
    value = values.item
    found = []
    for row, token_id in enumerate(token_ids):
        try:
            is_number = isfinite(value(row, token_id))
        except IndexError:  # a sampler that compares with NaN may choose anything
            is_number = False
        if not is_number and values[row].max() != -inf:
            found.append(row)
    return found
