"""Log probabilities of a prompt's own tokens."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from aethermind.engine.loading.model_graph import LOGPROB_OUTPUTS, Part
from aethermind.engine.requests.output import TokenLogprobs, read_logprobs
from aethermind.engine.steps.finite_logits import NOT_FINITE
from aethermind.engine.text_passes.text_pass import run_text
from aethermind.errors import ComputationError

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.request import Request
    from aethermind.engine.steps.model_runner import ModelRunner

__all__ = ["score_prompt"]


def score_prompt(runner: ModelRunner, cache: KVCache, request: Request, num_top: int) -> list[TokenLogprobs | None]:
    """What the model, with the request's adapter, thought of each token of a prompt before it saw it; None for the
    first.

    The prompt's keys and values are left to the prefix cache, so that the request need not compute them again.
    OutOfMemoryError where the KV cache has no room for the prompt, ComputationError where the scores are no numbers.
    """
    token_ids, extra_key = request.prompt_token_ids, request.extra_key
    executor = runner.executor_of(Part.SCORES, request.adapter)
    targets = [*token_ids[1:], token_ids[-1]]  # nobody reads what comes of the last row

    def fill(start: int, count: int) -> None:
        executor.host_inputs["target_ids"][:count] = targets[start : start + count]

    found: list[TokenLogprobs | None] = [None]
    pieces = run_text(executor, runner.kv_memory, cache, token_ids, fill, is_published=True, extra_key=extra_key)
    for _, count, symbols in pieces:
        columns = [executor.output(name, symbols) for name in LOGPROB_OUTPUTS]
        found.extend(read_logprobs(columns, [num_top] * count))
    scores = found[: len(token_ids)]
    if not all(isfinite(score.logprob) for score in scores if score is not None):
        raise ComputationError(f"The prompt cannot be scored: {NOT_FINITE}.")
    return scores
