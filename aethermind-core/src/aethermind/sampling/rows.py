"""Sampler inputs as row tensors, one row for each row of logits: parameters, penalties and token masks."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, Self

from aethermind.sampling.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.sampling.guidance import Guide
    from aethermind.sampling.logits_constraints import LogitsConstraints

__all__ = [
    "AdjustmentSizes",
    "MaskRows",
    "PenaltyState",
    "SampledRequest",
    "SamplingRows",
    "derive_seed",
    "is_in_tag",
    "needs_adjusted_logits",
    "needs_mask",
    "uniform",
]

_MAX_TOP_K = 2**31 - 1
"""The greatest top_k of a row: the largest int32, larger than any vocabulary."""

AdjustmentSizes = tuple[int, int, int]
"""Lengths of the three lists of tokens: seen (repetition penalty), held back (may not be sampled), with a bias."""


class SampledRequest(Protocol):
    """The attributes of a request that sampling reads; also implemented by a request with draft tokens appended."""

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
    def constraints(self) -> LogitsConstraints | None: ...

    @property
    def penalties(self) -> PenaltyState: ...


def needs_adjusted_logits(request: SampledRequest) -> bool:
    """Whether the next token needs more than a mask: changed logits, tokens that may not be sampled, or logprobs."""
    params = request.params
    return params.is_adjusted or len(request.output_token_ids) < params.min_tokens


def is_in_tag(request: SampledRequest) -> bool:
    """Whether the next token belongs to a structural tag, whose trigger is in the output."""
    structured_outputs, constraints = request.params.structured_outputs, request.constraints
    if structured_outputs is None or not structured_outputs.is_triggered:
        return False
    return (
        constraints is not None
        and constraints.guide is not None
        and constraints.guide.is_active(request.output_token_ids)
    )


def needs_mask(request: SampledRequest) -> bool:
    """Whether the next token needs a mask: of allowed ids, of a grammar, or of a structural tag."""
    return request.params.is_masked or is_in_tag(request)


class SamplingRows:
    """Writes the sampler's inputs in place; the arrays are allocated once, for the largest number of rows."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._temperature = arrays["temperature"]
        self._top_k = arrays["top_k"]
        self._top_p = arrays["top_p"]
        self._min_p = arrays["min_p"]
        self._uniform = arrays["uniform"]
        self._arrays = arrays

    @cached_property
    def masks(self) -> MaskRows:
        """The writer of token_mask [R, W], for graphs that have one."""
        return MaskRows(self._arrays["token_mask"], len(self._temperature))

    def fill(self, requests: Sequence[SampledRequest]) -> None:
        """Write temperature, top_k, top_p, min_p and uniform [R], the random number in [0, 1) of each row.

        The random number depends on the request's seed and on how many tokens it has generated.
        """
        count, params_of_rows = len(requests), [request.params for request in requests]
        self._temperature[:count] = [params.temperature for params in params_of_rows]
        self._top_k[:count] = [min(params.top_k, _MAX_TOP_K) for params in params_of_rows]
        self._top_p[:count] = [params.top_p for params in params_of_rows]
        self._min_p[:count] = [params.min_p for params in params_of_rows]
        self._uniform[:count] = [
            0.0 if request.params.temperature == 0.0 else uniform(request.seed, len(request.output_token_ids))
            for request in requests
        ]

    def fill_adjustments(self, requests: Sequence[SampledRequest]) -> AdjustmentSizes:
        """Write penalty [R] and the three lists of `AdjustmentSizes`; return their lengths."""
        penalty_states = [request.penalties for request in requests]
        self._arrays["penalty"][: len(requests)] = [request.params.repetition_penalty for request in requests]
        num_seen = self._fill_ragged("seen", [penalties.seen for penalties in penalty_states])
        num_held_back = self._fill_ragged("held_back", [list(_banned_tokens(request)) for request in requests])
        num_biased = self._fill_ragged("biased", [penalties.biased for penalties in penalty_states])
        values, position = self._arrays["bias"], 0
        for penalties in penalty_states:
            values[position : position + len(penalties.biases)] = penalties.biases
            position += len(penalties.biases)
        return num_seen, num_held_back, num_biased

    def _fill_ragged(self, name: str, rows: Sequence[Sequence[int]]) -> int:
        """Write lists of tokens one after the other, and where each begins; returns the number of tokens."""
        tokens, starts = self._arrays[f"{name}_tokens"], self._arrays[f"cu_{name}"]
        ends = list(accumulate(map(len, rows), initial=0))
        starts[: len(ends)] = ends
        for ids, start, end in zip(rows, ends, ends[1:], strict=False):
            if start < end:
                tokens[start:end] = ids
        return ends[-1]


def _banned_tokens(request: SampledRequest) -> Collection[int]:
    """Tokens that may not be sampled next: stop tokens before `min_tokens`, and those that complete a bad word."""
    stop_tokens = request.stop_token_ids if len(request.output_token_ids) < request.params.min_tokens else ()
    constraints = request.constraints
    if constraints is None or not constraints.bad_words:
        return stop_tokens
    return {*stop_tokens, *constraints.banned(request.output_token_ids)}


_WORTH_THREADS_S = 1e-3
"""Seconds: masks whose total time exceeds this are written by several threads. Waking one takes a tenth of it."""
_MAX_MASK_THREADS = 3
_EMA_WEIGHT = 0.1


class _GuidedRow:
    """A row whose mask is written by a grammar's guide; `failure` says why its answer cannot continue."""

    __slots__ = ("failure", "guide", "mask", "output_token_ids", "row")

    def __init__(self, row: int, guide: Guide, output: Sequence[int], mask: npt.NDArray[np.int32]) -> None:
        self.row = row
        self.guide = guide
        self.output_token_ids = output
        self.mask = mask
        self.failure: str | None = None


class MaskRows:
    """Writes token_mask [R, W] in place: bit t % 32 of word t // 32 is set if a row may choose token t.

    Guides of one lane would wait for each other (see `Grammars`), so each lane is written by one thread.
    """

    def __init__(self, token_mask: npt.NDArray[np.int32], num_rows: int) -> None:
        """`token_mask` is a flat array for `num_rows` rows."""
        self._mask = token_mask
        self._width = len(token_mask) // num_rows
        self._guide_s = 0.0
        """Seconds that a guide takes for one row: an exponential moving average."""

    def fill(self, requests: Sequence[SampledRequest]) -> dict[int, str]:
        """Write the row of each request; returns by row why an answer cannot continue, see `TokenGuide.fill`."""
        lanes: dict[int, list[_GuidedRow]] = {}
        for row, request in enumerate(requests):
            mask, constraints = self._row(row), request.constraints
            if constraints is None or constraints.guide is None:
                mask[:] = -1
            else:
                guided = _GuidedRow(row, constraints.guide, request.output_token_ids, mask)
                lanes.setdefault(constraints.guide.lane, []).append(guided)
        self._fill_lanes(list(lanes.values()))
        for row, request in enumerate(requests):
            if request.constraints is not None and request.constraints.allowed is not None:
                mask = self._row(row)
                mask &= request.constraints.allowed
        return {guided.row: guided.failure for lane in lanes.values() for guided in lane if guided.failure is not None}

    def allows(self, row: int, request: SampledRequest, token_id: int) -> bool:
        """Whether the request of a row may have a token, by the mask that was written last."""
        constraints = request.constraints
        if constraints is None:
            return True
        mask = constraints.allowed if constraints.guide is None else self._row(row)
        return mask is None or bool(int(mask[token_id // 32]) >> (token_id % 32) & 1)

    def _row(self, row: int) -> npt.NDArray[np.int32]:
        return self._mask[row * self._width : (row + 1) * self._width]

    def _fill_lanes(self, lanes: list[list[_GuidedRow]]) -> None:
        """Write the rows of all lanes' guides."""
        num_guides = sum(map(len, lanes))
        if not num_guides:
            return
        if len(lanes) > 1 and self._guide_s * num_guides > _WORTH_THREADS_S:
            first, *others = lanes
            futures = [self._mask_threads.submit(_write_masks, lane) for lane in others]
            seconds = _write_masks(first) + sum(future.result() for future in futures)
        else:
            seconds = sum(map(_write_masks, lanes))
        self._guide_s += _EMA_WEIGHT * (seconds / num_guides - self._guide_s)

    @cached_property
    def _mask_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_MAX_MASK_THREADS, "token-masks")


def _write_masks(lane: Iterable[_GuidedRow]) -> float:
    """Write the masks of rows one after the other; returns the seconds that it took."""
    started = time.perf_counter()
    for guided in lane:
        guided.failure = guided.guide.fill(guided.output_token_ids, guided.mask)
    return time.perf_counter() - started


class PenaltyState:
    """The penalty state of one request: its distinct tokens, and how often each is in the answer. Mutable.

    A request only grows, so each of its tokens is counted once, and the cost of a step does not grow with the answer.
    The sampler takes the arrays as they are; callers must not change them.
    """

    __slots__ = (
        "_counts",
        "_index_of",
        "_num_counted",
        "_num_seen",
        "_params",
        "_seen_set",
        "biased",
        "biases",
        "seen",
    )

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self.seen = array("i")
        """The distinct tokens of prompt and answer, for the repetition penalty."""
        self._seen_set: set[int] = set()
        self._num_seen = 0
        self.biased = array("i", [token_id for token_id, _ in params.logit_bias])
        """The tokens with a logit bias, and those of the answer for the presence and frequency penalties."""
        self.biases = array("d", [bias for _, bias in params.logit_bias])
        """The sum of bias and penalties for each of these tokens."""
        self._index_of = {token_id: index for index, token_id in enumerate(self.biased)}
        self._counts = [0] * len(self.biased)
        self._num_counted = 0

    def update(self, all_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> Self:
        """Count the tokens that were appended since the last call."""
        params = self._params
        if params.repetition_penalty != 1.0 and len(all_token_ids) > self._num_seen:
            self._add_seen(all_token_ids[self._num_seen :])
        if (params.presence_penalty or params.frequency_penalty) and len(output_token_ids) > self._num_counted:
            self._count_tokens(output_token_ids[self._num_counted :])
        return self

    def fork(self) -> PenaltyState:
        """Return a copy for the same request with other tokens appended, such as drafts."""
        copy = PenaltyState(self._params)
        copy.seen, copy.biased, copy.biases = self.seen[:], self.biased[:], self.biases[:]
        copy._seen_set, copy._index_of, copy._counts = set(self._seen_set), dict(self._index_of), list(self._counts)
        copy._num_seen, copy._num_counted = self._num_seen, self._num_counted
        return copy

    def _add_seen(self, token_ids: Sequence[int]) -> None:
        self._num_seen += len(token_ids)
        new = [token_id for token_id in dict.fromkeys(token_ids) if token_id not in self._seen_set]
        self._seen_set.update(new)
        self.seen.extend(new)

    def _count_tokens(self, token_ids: Sequence[int]) -> None:
        self._num_counted += len(token_ids)
        params = self._params
        for token_id in token_ids:
            index = self._index_of.get(token_id)
            if index is None:
                index = self._index_of[token_id] = len(self.biased)
                self.biased.append(token_id)
                self.biases.append(0.0)
                self._counts.append(0)
            self._counts[index] += 1
            bias = params.logit_bias[index][1] if index < len(params.logit_bias) else 0.0
            self.biases[index] = bias - (params.presence_penalty + params.frequency_penalty * self._counts[index])


_UINT64_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_TWO_POW_MINUS_53 = 2.0**-53


def uniform(seed: int, position: int) -> float:
    """Return the random number in [0, 1), of 53 bits, at `position` in the stream of `seed`.

    The generator is counter-based: there is no state, so a request draws the same numbers alone, in any batch, and
    after a preemption. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood, 2014), applied first to
    the seed, so that neighbouring seeds start far apart, and then to the position.

    `seed` is taken modulo 2**64; `position` is 0 or more, by convention the number of tokens that precede the
    one being sampled.
    """
    return (_mix(_stream_start(seed) + position * _GOLDEN_GAMMA) >> 11) * _TWO_POW_MINUS_53


def derive_seed(seed: int, index: int) -> int:
    """Return the seed, in [0, 2**64), of the `index`-th request of an engine with `seed`."""
    return _mix(_mix(seed ^ _GOLDEN_GAMMA) + index)


@lru_cache(maxsize=1024)
def _stream_start(seed: int) -> int:
    """Return the start of a seed's stream; cached, because it is needed for each token."""
    return _mix(seed)


def _mix(value: int) -> int:
    value = (value + _GOLDEN_GAMMA) & _UINT64_MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64_MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _UINT64_MASK
    return value ^ (value >> 31)
