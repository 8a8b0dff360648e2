"""Host-side work on logits: the check for NaN and infinity, and plugins that change a row before it is sampled.

A NaN or infinity in a hidden state reaches every logit computed from it, so the logit of the chosen token is enough to
detect it. The check reads one value a row, and only where the host can access the logits. On other devices, where the
logits would have to be copied in every step, log probabilities show it if a request asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.steps.verification import SampledRow

__all__ = ["NOT_FINITE", "nonfinite_rows", "process_logits"]

NOT_FINITE = "the model's logits are not finite: try dtype='float32', or fetch the weights again"
"""The reason why a request has no next token, as the end of a sentence."""


def nonfinite_rows(values: np.ndarray[Any, Any], token_ids: Sequence[int]) -> list[int]:
    """Return the rows of `values` [R or more, V] in which the value of the row's token is not finite.

    Masked tokens have the value -inf, so a chosen token with -inf is an error too, unless the whole row is masked.
    """
    value = values.item
    found = []
    for row, token_id in enumerate(token_ids):
        try:
            is_number = isfinite(value(row, token_id))
        except IndexError:  # a sampler that compares with NaN may return any id
            is_number = False
        if not is_number and values[row].max() != -inf:
            found.append(row)
    return found


def process_logits(request: SampledRow, logits: npt.NDArray[np.float32]) -> str | None:
    """Apply a request's logits processors to its row, float32 [V]; returns the error of one that failed, else None."""
    assert request.constraints is not None, "only requests with constraints have processors"
    for name, processor in zip(request.params.logits_processors, request.constraints.processors, strict=True):
        try:
            processor(request.prompt_token_ids, request.output_token_ids, logits)
        except Exception as error:  # third-party code: only its own request ends
            return f"the logits processor {name} failed with {type(error).__name__}: {error}"
    return None
