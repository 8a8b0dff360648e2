"""One vector for a text: the model's hidden states, pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aethermind.engine.loading.model_graph import Part
from aethermind.engine.text_passes.text_pass import run_text
from aethermind.errors import ComputationError, InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.steps.model_runner import ModelRunner

__all__ = ["POOLINGS", "embed_text"]

POOLINGS = ("last", "mean", "cls")
"""Of the hidden states behind the final norm: the last token's, the mean of all, the first token's."""


def embed_text(
    runner: ModelRunner,
    cache: KVCache,
    token_ids: Sequence[int],
    pooling: str,
    *,
    is_normalized: bool,
    adapter: int = -1,
) -> npt.NDArray[np.float32]:
    """The vector of a text, float32 [hidden_size], of length 1 if normalised, by the adapter of that number, if any.

    InvalidArgumentError for an unknown pooling, OutOfMemoryError where the KV cache has no room for the text,
    ComputationError where what comes of it are no numbers.
    """
    import numpy as np

    if pooling not in POOLINGS:
        raise InvalidArgumentError(f"pooling should be one of {', '.join(POOLINGS)}, got {pooling!r}.")
    executor = runner.executor_of(Part.HIDDEN_STATES, adapter)
    total: npt.NDArray[Any] | None = None
    for start, _, symbols in run_text(executor, runner.kv_memory, cache, token_ids):
        states = executor.output("hidden_states", symbols).astype(np.float64)
        if pooling == "mean":
            total = states.sum(axis=0) if total is None else total + states.sum(axis=0)
        elif pooling == "last":
            total = states[-1]
        elif start == 0:
            total = states[0]
    assert total is not None, "a text has at least one token"
    if not np.isfinite(total).all():
        raise ComputationError("The embedding is not finite: try dtype='float32', or fetch the weights again.")
    divisor = np.linalg.norm(total) if is_normalized else len(token_ids) if pooling == "mean" else 1.0
    return (total / (divisor or 1.0)).astype(np.float32)
