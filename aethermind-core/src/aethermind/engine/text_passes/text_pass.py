"""A text run through the model piece by piece, by itself: for what is wanted of all its tokens, not of the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from aethermind.cache.outcome import Outcome
from aethermind.errors import OutOfMemoryError

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.graph.executor import Executor

__all__ = ["TextPiece", "run_text"]

TextPiece = tuple[int, int, tuple[int, ...]]
"""The first token, the number of tokens, and the symbols with which outputs of the executor are read."""

_SEQUENCE_ID = "text of its own"


def run_text(
    executor: Executor,
    memory: KVMemory,
    cache: KVCache,
    token_ids: Sequence[int],
    fill: Callable[[int, int], None] | None = None,
    *,
    is_published: bool = False,
    extra_key: bytes = b"",
) -> Iterator[TextPiece]:
    """Compute a text between steps of the engine, in pieces as large as the executor takes; `memory` is the cache's.

    Every token has a row. `fill(start, count)` writes inputs of the rows besides those of the model. After each piece
    its outputs can be read. With `is_published` the keys and values of a whole text are left to the prefix cache, for
    texts of the same `extra_key`.
    OutOfMemoryError where the KV cache has no room for it.
    """
    cache.open(_SEQUENCE_ID, extra_key=extra_key)
    num_computed = 0
    try:
        if cache.reserve(_SEQUENCE_ID, len(token_ids)).outcome is not Outcome.OK:
            raise OutOfMemoryError(
                f"The KV cache has no room for a text of {len(token_ids)} tokens. Raise num_kv_blocks."
            )
        memory.wait_for_swaps()
        most = min(executor.plan.symbols[name] for name in ("T", "R"))
        for start in range(0, len(token_ids), most):
            count = min(most, len(token_ids) - start)
            if fill is not None:
                fill(start, count)
            symbols = _write(executor, cache, token_ids[start : start + count], start)
            executor.run(symbols)
            executor.synchronize()
            cache.commit(_SEQUENCE_ID, count)
            num_computed += count
            yield start, count, symbols
    finally:
        is_whole = num_computed == len(token_ids)
        cache.release(_SEQUENCE_ID, token_ids if is_published and is_whole else ())


def _write(executor: Executor, cache: KVCache, token_ids: Sequence[int], start: int) -> tuple[int, ...]:
    count, table = len(token_ids), cache.block_table(_SEQUENCE_ID)
    inputs = executor.host_inputs
    given: dict[str, Sequence[int]] = {
        "token_ids": token_ids,
        "positions": range(start, start + count),
        "cu_seqlens_q": (0, count),
        "seqlens_k": (start + count,),
        "block_tables": table,
        "logits_rows": range(count),
    }
    for name, values in given.items():
        inputs[name][: len(values)] = values
    cache.fill_slots(_SEQUENCE_ID, start, count, inputs["slot_mapping"])
    sizes = {"T": count, "S": 1, "R": count, "B": len(table)}
    return tuple(sizes.get(name, 0) for name in executor.plan.symbols)
