"""Passes of a whole text through the model, between steps: its logits, its embedding, its prompt log probabilities.

A text runs without other requests, in chunks, and the graph has an output row for every token. In a step of the engine
only the last token of a request has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.reservations import reserve_chunk
from aethermind.engine.loading.model_graph import LOGPROB_OUTPUTS, GraphKind
from aethermind.engine.requests.output import TokenLogprobs, read_logprobs
from aethermind.engine.requests.prompt_reader import check_token_ids
from aethermind.engine.steps.model_runner import NOT_FINITE
from aethermind.errors import ComputationError, InvalidArgumentError, OutOfMemoryError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.engine import Engine
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.engine.requests.request import Request
    from aethermind.engine.steps.model_runner import ModelRunner
    from aethermind.graph.executor import PlanExecutor

__all__ = ["POOLINGS", "TextChunk", "embed_text", "run_text", "score_prompt", "text_logits"]

TextChunk = tuple[int, int, tuple[int, ...]]
"""A chunk of a text: the index of its first token, its number of tokens, and the sizes of the plan's symbolic dims
(T, R, …), with which the executor's outputs are read.
"""

_SEQUENCE_ID = "text of its own"


def run_text(
    executor: PlanExecutor,
    memory: KVMemory,
    cache: KVCache,
    token_ids: Sequence[int],
    fill: Callable[[int, int], None] | None = None,
    *,
    is_published: bool = False,
    extra_key: bytes = b"",
    run: Callable[[tuple[int, ...]], None] | None = None,
) -> Iterator[TextChunk]:
    """Compute a text between steps of the engine, in chunks of the executor's size; `memory` is the cache's.

    Every token has an output row. `fill(start, count)` writes further inputs of the rows. A chunk's outputs can be read
    when it is yielded. With `is_published` the full blocks of the text are published to the prefix cache under
    `extra_key`, once all of it is computed.
    `run(symbols)` is called in place of `executor.run`. OutOfMemoryError if the KV cache has too few free blocks.
    """
    cache.open(_SEQUENCE_ID, extra_key=extra_key)
    num_computed = 0
    try:
        chunk_size = min(executor.plan.symbols[name] for name in ("T", "R"))
        while num_computed < len(token_ids):
            start, num_left = num_computed, len(token_ids) - num_computed
            count = min(chunk_size, num_left)
            # All blocks are reserved at once, so that a text that does not fit is not computed in part. With sliding
            # windows they are reserved by chunk, because windows free blocks between chunks.
            if cache.num_groups > 1:
                reserved, count = reserve_chunk(cache, _SEQUENCE_ID, count)
            else:
                reserved = cache.reserve(_SEQUENCE_ID, num_left)
            if reserved.outcome is not CacheOutcome.OK:
                raise OutOfMemoryError(
                    f"The KV cache has too few free blocks for a text of {len(token_ids)} tokens. Raise num_kv_blocks."
                )
            memory.wait_for_swaps()
            memory.copy_states(cache.state_copies)
            if fill is not None:
                fill(start, count)
            symbols = _write_inputs(executor, cache, token_ids[start : start + count], start)
            (run or executor.run)(symbols)
            executor.synchronize()
            cache.commit(_SEQUENCE_ID, count)
            num_computed += count
            yield start, count, symbols
    finally:
        is_complete = num_computed == len(token_ids)
        cache.release(_SEQUENCE_ID, token_ids if is_published and is_complete else ())


def _write_inputs(executor: PlanExecutor, cache: KVCache, token_ids: Sequence[int], start: int) -> tuple[int, ...]:
    """Write the inputs of a chunk; returns the sizes of the plan's symbolic dims."""
    count, table = len(token_ids), cache.block_table(_SEQUENCE_ID)
    inputs = executor.host_inputs
    values_of: dict[str, Sequence[int]] = {
        "token_ids": token_ids,
        "positions": range(start, start + count),
        "cu_seqlens_q": (0, count),
        "seqlens_k": (start + count,),
        "block_tables": table,
        "logits_rows": range(count),
    }
    if cache.is_recurrent:
        values_of["state_slots"] = (cache.state_slot(_SEQUENCE_ID),)
    for group in range(1, cache.num_groups):
        values_of[f"block_tables.{group}"] = cache.block_table(_SEQUENCE_ID, group)
        cache.fill_slots(_SEQUENCE_ID, start, count, inputs[f"slot_mapping.{group}"], group=group)
    for name, values in values_of.items():
        inputs[name][: len(values)] = values
    cache.fill_slots(_SEQUENCE_ID, start, count, inputs["slot_mapping"])
    sizes = {"T": count, "S": 1, "R": count, "B": len(table)}
    return tuple(sizes.get(name, 0) for name in executor.plan.symbols)


def text_logits(engine: Engine, token_ids: Sequence[int], executor: PlanExecutor | None = None) -> np.ndarray[Any, Any]:
    """Compute the logits of every token of a text in one step of an idle engine; returns float32 [len(token_ids), V].

    The text is at most as long as the rows and tokens of a step (`max_num_seqs`, `max_num_batched_tokens`). `executor`
    is that of another graph of the step, such as the one with adapters. InvalidArgumentError for ids outside the
    model's vocabulary, which kernels do not check. OutOfMemoryError if the KV cache has too few free blocks.
    ComputationError if the logits are not finite.
    """
    import numpy as np

    check_token_ids(engine.compiled, token_ids)
    executor, count = executor or engine.runner.executor, len(token_ids)
    chunk_size = min(executor.plan.symbols[name] for name in ("T", "R"))
    assert 0 < count <= chunk_size, f"a text of {count} tokens does not fit a step of {chunk_size}"
    for name in ("temperature", "top_k", "min_p", "uniform"):
        executor.host_inputs[name][:count] = 0
    executor.host_inputs["top_p"][:count] = 1
    ((_, _, symbols),) = run_text(executor, engine.runner.kv_memory, engine.cache, token_ids)
    logits: np.ndarray[Any, Any] = executor.output("logits", symbols).copy()
    if not np.isfinite(logits).all():
        raise ComputationError(f"The text has no logits: {NOT_FINITE}.")
    return logits


POOLINGS = ("last", "mean", "cls")
"""Poolings of the hidden states after the final norm: the last token's, the mean of all, the first token's."""


def embed_text(
    runner: ModelRunner,
    cache: KVCache,
    token_ids: Sequence[int],
    pooling: str,
    *,
    is_normalized: bool,
    adapter: int = -1,
) -> npt.NDArray[np.float32]:
    """Compute the embedding of a text, float32 [hidden_size], of length 1 if `is_normalized`. `adapter` is the
    number of a LoRA adapter, negative for none.

    InvalidArgumentError for an unknown pooling, OutOfMemoryError if the KV cache has too few free blocks,
    ComputationError if the result is not finite.
    """
    import numpy as np

    if pooling not in POOLINGS:
        raise InvalidArgumentError(f"pooling should be one of {', '.join(POOLINGS)}, got {pooling!r}.", param="pooling")
    executor = runner.executor_of(GraphKind.HIDDEN_STATES, adapter)
    pooled: npt.NDArray[Any] | None = None
    for start, _, symbols in run_text(executor, runner.kv_memory, cache, token_ids):
        states = executor.output("hidden_states", symbols).astype(np.float64)
        if pooling == "mean":
            pooled = states.sum(axis=0) if pooled is None else pooled + states.sum(axis=0)
        elif pooling == "last":
            pooled = states[-1]
        elif start == 0:
            pooled = states[0]
    assert pooled is not None, "a text has at least one token"
    if not np.isfinite(pooled).all():
        raise ComputationError("The embedding is not finite: try dtype='float32', or fetch the weights again.")
    divisor = np.linalg.norm(pooled) if is_normalized else len(token_ids) if pooling == "mean" else 1.0
    return (pooled / (divisor or 1.0)).astype(np.float32)


def score_prompt(runner: ModelRunner, cache: KVCache, request: Request, num_top: int) -> list[TokenLogprobs | None]:
    """Compute the log probabilities of a prompt's tokens, with the request's adapter; None for the first token.

    The prompt is published to the prefix cache, so that the request does not compute it again. OutOfMemoryError if the
    KV cache has too few free blocks, ComputationError if the results are not finite.
    """
    token_ids, extra_key = request.prompt_token_ids, request.extra_key
    executor = runner.executor_of(GraphKind.SCORES, request.adapter)
    targets = [*token_ids[1:], token_ids[-1]]  # the result of the last row is not read

    def fill(start: int, count: int) -> None:
        executor.host_inputs["target_ids"][:count] = targets[start : start + count]

    logprobs: list[TokenLogprobs | None] = [None]
    chunks = run_text(executor, runner.kv_memory, cache, token_ids, fill, is_published=True, extra_key=extra_key)
    for _, count, symbols in chunks:
        outputs = [executor.output(name, symbols) for name in LOGPROB_OUTPUTS]
        logprobs.extend(read_logprobs(outputs, [num_top] * count))
    logprobs = logprobs[: len(token_ids)]
    if not all(isfinite(entry.logprob) for entry in logprobs if entry is not None):
        raise ComputationError(f"The prompt cannot be scored: {NOT_FINITE}.")
    return logprobs
