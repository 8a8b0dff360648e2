"""Sampling parameters of many requests as row tensors, one row for each row of logits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from aethermind.sampling.params import SamplingParams
from aethermind.sampling.random import uniform

__all__ = ["SampledRequest", "SamplingRows", "needs_adjusted_logits"]


_MAX_TOP_K = 2**31 - 1
"""As many as any vocabulary has, and the most that the rows hold."""


class SampledRequest(Protocol):
    """What sampling looks at in a request."""

    params: SamplingParams
    seed: int
    all_token_ids: list[int]
    output_token_ids: list[int]
    stop_token_ids: Any


def needs_adjusted_logits(request: SampledRequest) -> bool:
    """Whether this token needs more than the plain sampler: a penalty, a stop token held back, or log probabilities."""
    params = request.params
    return (
        params.repetition_penalty != 1.0
        or params.logprobs is not None
        or len(request.output_token_ids) < params.min_tokens
    )


class SamplingRows:
    """Writes the sampler's inputs in place; the arrays are allocated once, for the most rows there can be."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._temperature = arrays["temperature"]
        self._top_k = arrays["top_k"]
        self._top_p = arrays["top_p"]
        self._min_p = arrays["min_p"]
        self._uniform = arrays["uniform"]
        self._arrays = arrays

    def fill(self, requests: Sequence[SampledRequest]) -> None:
        """temperature, top_k, top_p, min_p [R], and one random number a row that depends on its request alone."""
        for row, request in enumerate(requests):
            params = request.params
            self._temperature[row] = params.temperature
            self._top_k[row] = min(params.top_k, _MAX_TOP_K)
            self._top_p[row] = params.top_p
            self._min_p[row] = params.min_p
            self._uniform[row] = (
                0.0 if params.temperature == 0.0 else uniform(request.seed, len(request.output_token_ids))
            )

    def fill_adjustments(self, requests: Sequence[SampledRequest]) -> tuple[int, int]:
        """penalty [R] with the tokens each row has seen, and the tokens it may not choose yet; returns how many of
        both.
        """
        seen, held_back = [], []
        for row, request in enumerate(requests):
            params = request.params
            self._arrays["penalty"][row] = params.repetition_penalty
            seen.append(dict.fromkeys(request.all_token_ids) if params.repetition_penalty != 1.0 else ())
            held_back.append(request.stop_token_ids if len(request.output_token_ids) < params.min_tokens else ())
        return self._fill_ragged("seen", seen), self._fill_ragged("held_back", held_back)

    def _fill_ragged(self, name: str, rows: Sequence[Collection[int]]) -> int:
        tokens, starts = self._arrays[f"{name}_tokens"], self._arrays[f"cu_{name}"]
        position = 0
        starts[0] = 0
        for row, ids in enumerate(rows):
            tokens[position : position + len(ids)] = list(ids)
            position += len(ids)
            starts[row + 1] = position
        return position
