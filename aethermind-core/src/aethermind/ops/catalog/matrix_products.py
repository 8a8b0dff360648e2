"""Matrix products: with a weight, with the LM head, of two activations, and with the LoRA adapters of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType
from aethermind.ops.catalog._index_checks import Shapes, check_offsets
from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.operator import ONE_ROUNDING, Array, Call, Cost, Operator, Sample, Tolerance, accumulated
from aethermind.ops.schema import OperatorSchema

__all__ = ["ADD_LOW_RANK", "LINEAR", "LM_HEAD", "MATMUL", "linear_magnitudes"]


def _linear_reference(x: Array, weight: Array, bias: Array | None) -> Array:
    product = x @ weight.T
    return product if bias is None else product + bias


def _linear_by_row(x: Array, weight: Array, bias: Array | None) -> Array:
    product = (x[:, None] @ weight.T)[:, 0]
    return product if bias is None else product + bias


def linear_magnitudes(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return the sum of the magnitudes of the terms of every output of `linear`, also for operators that contain it."""
    return _linear_reference(np.abs(x), np.abs(weight), None if bias is None else np.abs(bias))


def _linear_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_outputs, num_inputs in (
        (3, 5, 7),
        (1, 33, 65),
        (1, 48, 896),
        (0, 8, 8),
        (4, 1, 1),
        (17, 31, 47),
        (32, 64, 128),
        (70, 19, 130),
        (133, 24, 72),
        (12, 20, 1100),
        (130, 9, 40),
        (300, 17, 33),
        (40, 5, 2080),
        (1, 3, 8200),
        (2, 2080, 9),
        (12, 20, 4360),
        (20, 24, 1024),
        (34, 16, 576),
        (100, 12, 72),
        (65, 8, 3400),
    ):
        x, w = normal(rng, num_tokens, num_inputs), weight(rng, num_outputs, num_inputs)
        label = f"T{num_tokens}_N{num_outputs}_K{num_inputs}"
        yield Sample(label, (x, w, None))
        yield Sample(f"{label}_bias", (x, w, normal(rng, num_outputs)))


LINEAR = Operator(
    schema=OperatorSchema.parse("linear(x: F[T, K], weight: W[N, K], bias: F[N]?) -> (out: F[T, N])"),
    summary="x @ weight.T + bias, summed in float32.",
    reference=_linear_reference,
    by_row=_linear_by_row,
    samples=_linear_samples,
    term_magnitudes=linear_magnitudes,
    tolerances=ONE_ROUNDING,
)
"""A product with a weight stored as [outputs, inputs], plus an optional bias."""


_FLOAT32_SUM = Tolerance(relative_to_terms=1e-5)


def _lm_head_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_rows, vocab_size, num_inputs in (
        (2, 11, 7),
        (1, 301, 64),
        (0, 16, 8),
        (5, 33, 130),
        (16, 128, 96),
        (1, 1, 1),
        (35, 40, 136),
        (133, 24, 72),
        (40, 70, 33),
        (300, 9, 20),
        (3, 5, 2080),
        (2, 66_001, 8),
    ):
        inputs = (normal(rng, num_rows, num_inputs), weight(rng, vocab_size, num_inputs))
        yield Sample(f"R{num_rows}_N{vocab_size}_K{num_inputs}", (*inputs, None))
    for num_rows, vocab_size, num_inputs in ((1, 33, 65), (5, 40, 130), (40, 70, 33)):
        biased = (normal(rng, num_rows, num_inputs), weight(rng, vocab_size, num_inputs), normal(rng, vocab_size))
        yield Sample(f"R{num_rows}_N{vocab_size}_K{num_inputs}_bias", biased)


LM_HEAD = Operator(
    schema=OperatorSchema.parse("lm_head(x: F[R, K], weight: W[N, K], bias: F[N]?) -> (logits: f32[R, N])"),
    summary="x @ weight.T + bias with float32 logits, whatever F is.",
    reference=_linear_reference,
    by_row=_linear_by_row,
    samples=_lm_head_samples,
    term_magnitudes=linear_magnitudes,
    # The output is float32 for every F: no rounding to F is allowed.
    tolerances=dict.fromkeys((DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16), _FLOAT32_SUM),
    additions=("bias",),
)
"""The projection to the vocabulary. Logits are float32 whatever F is, because sampling compares close logits."""


def _matmul_reference(a: Array, b: Array) -> Array:
    return a @ b


def _matmul_by_row(a: Array, b: Array) -> Array:
    return (a[..., :, None, :] @ b[..., None, :, :])[..., 0, :]


def _matmul_term_magnitudes(a: Array, b: Array) -> Array:
    return np.abs(a) @ np.abs(b)


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for leading, num_rows, num_inner, num_columns in (
        ((), 3, 7, 5),
        ((), 1, 65, 33),
        ((), 0, 8, 4),
        ((), 17, 31, 47),
        ((1,), 4, 1, 1),
        ((0,), 2, 3, 4),
        ((3,), 5, 19, 2),
        ((2, 3), 4, 9, 6),
        ((2,), 33, 64, 40),
        ((), 300, 70, 33),
        ((), 3, 2080, 5),
        ((2,), 9, 20, 300),
        ((40,), 2, 3, 5),
    ):
        label = "x".join(map(str, (*leading, num_rows, num_inner, num_columns)))
        yield Sample(label, (normal(rng, *leading, num_rows, num_inner), normal(rng, *leading, num_inner, num_columns)))


def _matmul_cost(call: Call) -> Cost:
    flops = 2 * prod(call.shape("out")) * call.shape("a")[-1]
    return Cost(call.bytes_in("a", "b"), call.bytes_out("out"), flops)


MATMUL = Operator(
    schema=OperatorSchema.parse("matmul(a: F[..., M, K], b: F[..., K, N]) -> (out: F[..., M, N])"),
    summary="a @ b over the last two dims, summed in float32.",
    reference=_matmul_reference,
    by_row=_matmul_by_row,
    samples=_matmul_samples,
    term_magnitudes=_matmul_term_magnitudes,
    tolerances=ONE_ROUNDING,
    cost=_matmul_cost,
)
"""The batched matrix product of two activations."""


# LoRA


def _add_low_rank_reference(y: Array, x: Array, down: Array, up: Array, cu_ranks: Array, adapters: Array) -> Array:
    out = y.copy()
    for adapter in np.unique(adapters[adapters >= 0]):
        rows, ranks = adapters == adapter, slice(cu_ranks[adapter], cu_ranks[adapter + 1])
        if ranks.start < ranks.stop:
            out[rows] += (x[rows] @ down[ranks].T) @ up[ranks]
    return out


def _add_low_rank_by_row(y: Array, x: Array, down: Array, up: Array, cu_ranks: Array, adapters: Array) -> Array:
    out = y.copy()
    for row, adapter in enumerate(adapters):
        if adapter >= 0:
            rows = slice(row, row + 1)
            out[rows] = _add_low_rank_reference(y[rows], x[rows], down, up, cu_ranks, adapters[rows])
    return out


def _add_low_rank_term_magnitudes(
    y: Array, x: Array, down: Array, up: Array, cu_ranks: Array, adapters: Array
) -> Array:
    terms = _add_low_rank_reference(np.abs(y), np.abs(x), np.abs(down), np.abs(up), cu_ranks, adapters)
    terms[(adapters < 0) | (np.diff(cu_ranks, append=cu_ranks[-1])[adapters] == 0)] = (
        0  # rows without an adapter are copied
    )
    return terms


def _add_low_rank_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, adapters, ranks, num_outputs, num_inputs in (
        ("mixed", (1, 1, -1, 0, 2, 1), (3, 8, 1), 33, 17),
        ("decode", (0,), (16,), 130, 65),
        ("decode_none", (-1,), (4,), 9, 7),
        ("one_of_many", (4,), (2, 0, 5, 16, 9), 70, 48),
        ("untouched", (1, 0, 1), (0, 3), 20, 31),
        ("no_ranks", (0, -1), (0,), 5, 3),
        ("empty", (), (2,), 8, 8),
        ("prefill", (0,) * 45, (16,), 96, 80),
        ("runs", (2,) * 13 + (-1,) * 5 + (0,) * 19 + (1,), (8, 33, 64), 47, 130),
        ("wide", (0, 1), (8, 8), 700, 1040),
        ("long", (1,) * 130 + (-1, 0) * 85, (3, 16), 24, 17),
        ("many_inputs", (1, 0, -1), (4, 9), 5, 2080),
        ("many_outputs", (0,), (4,), 2080, 5),
    ):
        num_tokens, total = len(adapters), sum(ranks)
        inputs = (
            normal(rng, num_tokens, num_outputs),
            normal(rng, num_tokens, num_inputs),
            weight(rng, total, num_inputs),
            normal(rng, total, num_outputs) / np.sqrt(max(*ranks, 1)),
            np.cumsum([0, *ranks]).astype(np.int32),
            np.array(adapters, np.int32),
        )
        yield Sample(f"{label}_T{num_tokens}_N{num_outputs}_K{num_inputs}", inputs)


def _add_low_rank_cost(call: Call) -> Cost:
    """Assume adapters of equal rank, and that every row uses another one; `y` is read and written."""
    num_tokens, total = call.shape("adapters")[0], call.shape("down")[0]
    num_adapters = max(call.shape("cu_ranks")[0] - 1, 1)
    num_used = min(num_tokens, num_adapters)
    weights = call.bytes_in("down", "up") * num_used // num_adapters
    read = call.bytes_in("y", "x", "cu_ranks", "adapters") + weights
    width = call.shape("x")[1] + call.shape("y")[1]
    return Cost(read, call.bytes_out("out"), 2 * num_tokens * width * total // num_adapters)


def _add_low_rank_check(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that `cu_ranks` are offsets of rows of `down` and `up`, and that `adapters` are indices of adapters."""
    check_offsets("cu_ranks", arrays["cu_ranks"], shapes["down"][0])
    adapters, num_adapters = arrays["adapters"], shapes["cu_ranks"][0] - 1
    if adapters.size and int(adapters.max()) >= num_adapters:
        raise OperatorError(f"adapters holds {int(adapters.max())}, but cu_ranks has {num_adapters} adapters.")


ADD_LOW_RANK = Operator(
    schema=OperatorSchema.parse(
        """add_low_rank(y: F[T, N], x: F[T, K], down: F[L, K], up: F[L, N], cu_ranks: i32[A+1], adapters: i32[T])
        -> (out: F[T, N] ~ y)"""
    ),
    summary=(
        "Row t becomes y[t] + (x[t] @ down[a].T) @ up[a] with the rows a = cu_ranks[adapters[t]] : "
        "cu_ranks[adapters[t] + 1] of down and up; it is y[t], bit for bit, where adapters[t] is negative or there are "
        "no such rows."
    ),
    reference=_add_low_rank_reference,
    by_row=_add_low_rank_by_row,
    samples=_add_low_rank_samples,
    term_magnitudes=_add_low_rank_term_magnitudes,
    # The product with down may be rounded to F.
    tolerances=accumulated(inner_roundings=1),
    cost=_add_low_rank_cost,
    check=_add_low_rank_check,
)
"""LoRA (Hu et al. 2021, arXiv:2106.09685) applied to a batch in which each row has its own adapter or none.

An adapter changes a weight by a product of two low-rank matrices. They are applied to the activations instead of merged
into the weight, so that requests with different adapters share the base weight in one batch (Chen et al. 2023,
arXiv:2310.18547; Sheng et al. 2023, arXiv:2311.03285).
"""
