"""Sampling parameters of many requests as row tensors, one row for each row of logits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.sampling.masks import MaskRows
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.random import uniform

if TYPE_CHECKING:
    from aethermind.sampling.controls import TokenControls
    from aethermind.sampling.tally import TokenTally

__all__ = ["AdjustmentSizes", "SampledRequest", "SamplingRows", "needs_adjusted_logits"]


_MAX_TOP_K = 2**31 - 1
"""As many as any vocabulary has, and the most that the rows hold."""

AdjustmentSizes = tuple[int, int, int]
"""How many tokens the three lists of adjustments hold: those seen, those held back, those with a bias."""


class SampledRequest(Protocol):
    """What sampling looks at in a request, or in one as it would be a few tokens later."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def seed(self) -> int: ...

    @property
    def all_token_ids(self) -> list[int]: ...

    @property
    def output_token_ids(self) -> list[int]: ...

    @property
    def stop_token_ids(self) -> Collection[int]: ...

    @property
    def controls(self) -> TokenControls | None: ...

    @property
    def tally(self) -> TokenTally: ...


def needs_adjusted_logits(request: SampledRequest) -> bool:
    """Whether this token needs more than a mask: changed logits, a token held back, or log probabilities."""
    params = request.params
    return params.is_adjusted or len(request.output_token_ids) < params.min_tokens


class SamplingRows:
    """Writes the sampler's inputs in place; the arrays are allocated once, for the most rows there can be."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._temperature = arrays["temperature"]
        self._top_k = arrays["top_k"]
        self._top_p = arrays["top_p"]
        self._min_p = arrays["min_p"]
        self._uniform = arrays["uniform"]
        self._arrays = arrays

    @cached_property
    def masks(self) -> MaskRows:
        """token_mask [R, W], of graphs that have one."""
        return MaskRows(self._arrays["token_mask"], len(self._temperature))

    def fill(self, requests: Sequence[SampledRequest]) -> None:
        """temperature, top_k, top_p, min_p [R], and one random number a row that depends on its request alone."""
        count, given = len(requests), [request.params for request in requests]
        self._temperature[:count] = [params.temperature for params in given]
        self._top_k[:count] = [min(params.top_k, _MAX_TOP_K) for params in given]
        self._top_p[:count] = [params.top_p for params in given]
        self._min_p[:count] = [params.min_p for params in given]
        self._uniform[:count] = [
            0.0 if request.params.temperature == 0.0 else uniform(request.seed, len(request.output_token_ids))
            for request in requests
        ]

    def fill_adjustments(self, requests: Sequence[SampledRequest]) -> AdjustmentSizes:
        """penalty [R] with the tokens each row has seen, the tokens it may not choose, and biases of others."""
        tallies = [request.tally for request in requests]
        self._arrays["penalty"][: len(requests)] = [request.params.repetition_penalty for request in requests]
        num_seen = self._fill_ragged("seen", [tally.seen for tally in tallies])
        num_held_back = self._fill_ragged("held_back", [list(_held_back(request)) for request in requests])
        num_biased = self._fill_ragged("biased", [tally.biased for tally in tallies])
        values, position = self._arrays["bias"], 0
        for tally in tallies:
            values[position : position + len(tally.biases)] = tally.biases
            position += len(tally.biases)
        return num_seen, num_held_back, num_biased

    def _fill_ragged(self, name: str, rows: Sequence[Sequence[int]]) -> int:
        tokens, starts = self._arrays[f"{name}_tokens"], self._arrays[f"cu_{name}"]
        ends = list(accumulate(map(len, rows), initial=0))
        starts[: len(ends)] = ends
        for ids, start, end in zip(rows, ends, ends[1:], strict=False):
            if start < end:
                tokens[start:end] = ids
        return ends[-1]


def _held_back(request: SampledRequest) -> Collection[int]:
    early = request.stop_token_ids if len(request.output_token_ids) < request.params.min_tokens else ()
    controls = request.controls
    if controls is None or not controls.bad_words:
        return early
    return {*early, *controls.banned(request.output_token_ids)}
