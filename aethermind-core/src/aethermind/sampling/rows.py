"""Sampling parameters of many requests as row tensors, one row for each row of logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.sampling.masks import MaskRows
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.random import uniform

if TYPE_CHECKING:
    from aethermind.sampling.controls import TokenControls

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
        for row, request in enumerate(requests):
            params = request.params
            self._temperature[row] = params.temperature
            self._top_k[row] = min(params.top_k, _MAX_TOP_K)
            self._top_p[row] = params.top_p
            self._min_p[row] = params.min_p
            self._uniform[row] = (
                0.0 if params.temperature == 0.0 else uniform(request.seed, len(request.output_token_ids))
            )

    def fill_adjustments(self, requests: Sequence[SampledRequest]) -> AdjustmentSizes:
        """penalty [R] with the tokens each row has seen, the tokens it may not choose, and biases of others."""
        seen: list[Collection[int]] = []
        held_back: list[Collection[int]] = []
        biases: list[Mapping[int, float]] = []
        for row, request in enumerate(requests):
            params = request.params
            self._arrays["penalty"][row] = params.repetition_penalty
            seen.append(dict.fromkeys(request.all_token_ids) if params.repetition_penalty != 1.0 else ())
            held_back.append(_held_back(request))
            biases.append(_biases(request))
        num_biased = self._fill_ragged("biased", biases)
        values = self._arrays["bias"]
        values[:num_biased] = [value for bias in biases for value in bias.values()]
        return self._fill_ragged("seen", seen), self._fill_ragged("held_back", held_back), num_biased

    def _fill_ragged(self, name: str, rows: Sequence[Collection[int]]) -> int:
        tokens, starts = self._arrays[f"{name}_tokens"], self._arrays[f"cu_{name}"]
        position = 0
        starts[0] = 0
        for row, ids in enumerate(rows):
            tokens[position : position + len(ids)] = list(ids)
            position += len(ids)
            starts[row + 1] = position
        return position


def _held_back(request: SampledRequest) -> Collection[int]:
    early = request.stop_token_ids if len(request.output_token_ids) < request.params.min_tokens else ()
    controls = request.controls
    if controls is None or not controls.bad_words:
        return early
    return {*early, *controls.banned(request.output_token_ids)}


def _biases(request: SampledRequest) -> Mapping[int, float]:
    params = request.params
    biases = dict(params.logit_bias)
    if params.presence_penalty or params.frequency_penalty:
        for token_id, count in Counter(request.output_token_ids).items():
            penalty = params.presence_penalty + params.frequency_penalty * count
            biases[token_id] = biases.get(token_id, 0.0) - penalty
    return biases
