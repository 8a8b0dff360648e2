"""Log probabilities of tokens, as a step's graph reports them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aethermind.engine.model_graph import LOGPROB_OUTPUTS
from aethermind.graph.executor import Executor

__all__ = ["TokenLogprobs", "read_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities of one step, before temperature and penalties: the chosen token's, and the most likely ones
    in order.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def read_logprobs(
    executor: Executor, symbols: tuple[int, ...], wanted: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """Those of a finished run, with as many of the most likely tokens as each row wants; None where it is None."""
    columns = [executor.output(name, symbols).tolist() for name in LOGPROB_OUTPUTS]
    found: list[TokenLogprobs | None] = []
    for num_top, logprob, rank, ids, values in zip(wanted, *columns, strict=True):
        if num_top is None:
            found.append(None)
            continue
        top = tuple((token, value) for token, value in zip(ids, values, strict=True) if token >= 0)
        found.append(TokenLogprobs(logprob, rank, top[:num_top]))
    return found
