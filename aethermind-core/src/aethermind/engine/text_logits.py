"""The logits behind every token of a text, not of its last one only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aethermind.cache.outcome import Outcome
from aethermind.errors import OutOfMemoryError

if TYPE_CHECKING:
    import numpy as np

    from aethermind.engine.engine import Engine

__all__ = ["text_logits"]

_SEQUENCE_ID = "text logits"


def text_logits(engine: Engine, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Run a text as one step of an idle engine; returns float32 [len(token_ids), V].

    The text is at most as long as the rows and tokens of a step (`max_num_seqs`, `max_num_batched_tokens`).
    OutOfMemoryError where the KV cache has no room for it.
    """
    executor, cache = engine.runner.executor, engine.cache
    count = len(token_ids)
    most = min(executor.plan.symbols[name] for name in ("T", "R"))
    assert 0 < count <= most, f"a text of {count} tokens does not fit a step of {most}"
    cache.open(_SEQUENCE_ID)
    try:
        if cache.reserve(_SEQUENCE_ID, count).outcome is not Outcome.OK:
            raise OutOfMemoryError(f"The KV cache has no room for a text of {count} tokens. Raise --num-kv-blocks.")
        table = cache.block_table(_SEQUENCE_ID)
        given = {
            "token_ids": token_ids,
            "positions": range(count),
            "cu_seqlens_q": (0, count),
            "seqlens_k": (count,),
            "block_tables": table,
            "logits_rows": range(count),
            **dict.fromkeys(("temperature", "top_k", "min_p", "uniform"), [0] * count),
            "top_p": [1] * count,
        }
        inputs = executor.host_inputs
        for name, values in given.items():
            inputs[name][: len(values)] = values
        cache.fill_slots(_SEQUENCE_ID, 0, count, inputs["slot_mapping"])
        sizes = {"T": count, "S": 1, "R": count, "B": len(table)}
        symbols = tuple(sizes.get(name, 0) for name in executor.plan.symbols)
        executor.run(symbols)
        executor.synchronize()
        logits: np.ndarray[Any, Any] = executor.output("logits", symbols).copy()
        return logits
    finally:
        cache.release(_SEQUENCE_ID)
