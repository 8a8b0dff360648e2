"""The logits behind every token of a text, not of its last one only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aethermind.engine.requests.prompt_reader import check_token_ids
from aethermind.engine.steps.finite_logits import NOT_FINITE
from aethermind.engine.text_passes.text_pass import run_text
from aethermind.errors import ComputationError

if TYPE_CHECKING:
    import numpy as np

    from aethermind.engine.engine import Engine
    from aethermind.graph.executor import Executor

__all__ = ["run_whole_text", "text_logits"]


def text_logits(engine: Engine, token_ids: Sequence[int], executor: Executor | None = None) -> np.ndarray[Any, Any]:
    """Run a text as one step of an idle engine; returns float32 [len(token_ids), V].

    The text is at most as long as the rows and tokens of a step (`max_num_seqs`, `max_num_batched_tokens`).
    `executor` is that of another graph with the inputs and outputs of a plain step, over the same cache.
    InvalidArgumentError for ids that the model does not have, of a tokenizer with more tokens than it, say: kernels do
    not look whether the embedding has such a row. OutOfMemoryError where the KV cache has no room for the text.
    ComputationError where the logits are no numbers.
    """
    import numpy as np

    executor = executor or engine.runner.executor
    symbols = run_whole_text(engine, token_ids, executor)
    logits: np.ndarray[Any, Any] = executor.output("logits", symbols).copy()
    if not np.isfinite(logits).all():
        raise ComputationError(f"Nothing can be said of this text: {NOT_FINITE}.")
    return logits


def run_whole_text(engine: Engine, token_ids: Sequence[int], executor: Executor) -> tuple[int, ...]:
    """The same for whatever the executor's outputs are; returns the symbols to read them with."""
    check_token_ids(engine.planned, token_ids)
    count = len(token_ids)
    most = min(executor.plan.symbols[name] for name in ("T", "R"))
    assert 0 < count <= most, f"a text of {count} tokens does not fit a step of {most}"
    for name in ("temperature", "top_k", "min_p", "uniform"):
        executor.host_inputs[name][:count] = 0
    executor.host_inputs["top_p"][:count] = 1
    ((_, _, symbols),) = run_text(executor, engine.runner.kv_memory, engine.cache, token_ids)
    return symbols
