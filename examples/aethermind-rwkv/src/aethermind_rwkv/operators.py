"""The operators of RWKV-4 that the core does not have: a mix of two tokens, and attention as a recurrence.

Shapes: T tokens of S sequences, N state slots, D and A widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aethermind.dispatch import Kernel
from aethermind.hal import DType
from aethermind.ops import Operator, OperatorSchema, Sample, Tolerance

__all__ = ["OPERATORS", "kernels_for"]

_FLOATS = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})


def _mix(x: Any, previous: Any, mix: Any) -> Any:
    return x * mix[0] + previous * (1 - mix[0])


def _mix_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, width in ((3, 7), (1, 33), (0, 8), (17, 64)):
        x, previous = (rng.standard_normal((num_tokens, width)) for _ in range(2))
        yield Sample(f"T{num_tokens}_D{width}", (x, previous, rng.uniform(size=(1, 1, width))))


_MIX = Operator(
    schema=OperatorSchema.parse("time_mix(x: F[T, D], previous: F[T, D], mix: F[1, 1, D]) -> (out: F[T, D])"),
    summary="x · mix + previous · (1 - mix), channel by channel.",
    reference=_mix,
    samples=_mix_samples,
    term_magnitudes=lambda x, previous, mix: _mix(np.abs(x), np.abs(previous), mix),
    tolerances={
        DType.FLOAT32: Tolerance(relative_to_terms=2.0**-21),
        DType.BFLOAT16: Tolerance(relative_to_terms=2.0**-7),
        DType.FLOAT16: Tolerance(relative_to_terms=2.0**-10, absolute=2.0**-23),
    },
)

_LOWEST = -1e38


def _update_wkv(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Compute the tokens of each sequence in order, so that results do not depend on where a step begins."""
    k, v, decay, first, _, cuts, lengths, slots = inputs
    out, states = outputs
    out[...] = 0
    dtype = np.result_type(k.dtype, np.float32)
    k, v, decay, first = (array.astype(dtype, copy=False) for array in (k, v, decay, first))
    step = -np.exp(decay)
    for begin, end, length, slot in zip(cuts[:-1], cuts[1:], lengths, slots, strict=True):
        if begin == end:
            continue
        is_new = length == end - begin
        sums, total, largest = np.zeros((3, len(decay)), dtype) if is_new else states[slot].astype(dtype)
        if is_new:
            largest = np.full_like(decay, _LOWEST)
        for token in range(begin, end):
            now = np.maximum(largest, k[token] + first)
            past, own = np.exp(largest - now), np.exp(k[token] + first - now)
            out[token] = (past * sums + own * v[token]) / (past * total + own)
            after = np.maximum(largest + step, k[token])
            past, own = np.exp(largest + step - after), np.exp(k[token] - after)
            sums, total, largest = past * sums + own * v[token], past * total + own, after
        states[slot] = np.stack([sums, total, largest])


def _wkv(*inputs: Any) -> tuple[Any, Any]:
    outputs = np.zeros_like(inputs[0]), inputs[4].copy()
    _update_wkv(inputs, outputs)
    return outputs


def _wkv_terms(k: Any, v: Any, decay: Any, first: Any, state: Any, *tables: Any) -> tuple[Any, Any]:
    magnitudes = np.abs(state)
    magnitudes[:, 2] = state[:, 2]  # a logarithm
    out, states = _wkv(k, np.abs(v), decay, first, magnitudes, *tables)
    return np.where(out == 0, np.inf, out), 1 + np.abs(states)


def _wkv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    # Tokens in the step, and in all, of each sequence: prompts, later chunks and decodes.
    for label, sequences in (
        ("prompts", [(5, 5), (1, 1), (2, 2)]),
        ("mixed", [(1, 9), (7, 7), (4, 11)]),
        ("none", []),
    ):
        cuts = np.cumsum([0, *(tokens for tokens, _ in sequences)]).astype(np.int32)
        lengths = np.array([length for _, length in sequences], np.int32)
        num_slots, width = len(sequences) + 2, 13
        slots = rng.permutation(num_slots)[: len(sequences)].astype(np.int32)
        k, v = (rng.standard_normal((int(cuts[-1]), width)) for _ in range(2))
        decay, first = (rng.standard_normal(width) for _ in range(2))
        state = np.abs(rng.standard_normal((num_slots, 3, width))) + 0.5
        yield Sample(label, (k, v, decay, first, state, cuts, lengths, slots))


_WKV = Operator(
    schema=OperatorSchema.parse(
        """wkv(k: F[T, A], v: F[T, A], time_decay: F[A], time_first: F[A], state: f32[N, 3, A],
        cu_seqlens_q: i32[S+1], seqlens_k: i32[S], state_slots: i32[S])
        -> (out: F[T, A], state_out: f32[N, 3, A] = state)"""
    ),
    summary=(
        "The mean of the values so far, channel by channel: a token's weight is exp(k), which decays by "
        "exp(-exp(time_decay)) with every further token, and exp(k + time_first) for the token itself. The state has "
        "the weighted sum, the sum of weights, and the logarithm by which both are scaled."
    ),
    reference=_wkv,
    update=_update_wkv,
    samples=_wkv_samples,
    term_magnitudes=_wkv_terms,
    tolerances={
        DType.FLOAT32: Tolerance(relative_to_terms=1e-5),
        DType.BFLOAT16: Tolerance(relative_to_terms=2.0**-6),
        DType.FLOAT16: Tolerance(relative_to_terms=2.0**-9, absolute=2.0**-23),
    },
    gathered=frozenset({"state"}),
)
"""RWKV (Peng et al. 2023, arXiv:2305.13048), equations 14 to 16 and appendix D."""

OPERATORS = (_MIX, _WKV)


def _compute_mix(inputs: Sequence[Any], outputs: Sequence[Any], _: Mapping[str, Any]) -> None:
    outputs[0][...] = _mix(*(array.astype(np.float32, copy=False) for array in inputs))


def _compute_wkv(inputs: Sequence[Any], outputs: Sequence[Any], _: Mapping[str, Any]) -> None:
    _update_wkv(inputs, outputs)


def kernels_for(backend: str) -> list[Kernel]:
    """The kernels of a backend whose memory the host can access."""
    return [
        Kernel(name, backend, f"numpy {name}", _FLOATS, function=function, is_batch_invariant=True)
        for name, function in (("time_mix", _compute_mix), ("wkv", _compute_wkv))
    ]
