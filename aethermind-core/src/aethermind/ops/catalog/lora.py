"""LoRA (Hu et al. 2021, arXiv:2106.09685) applied to a batch in which each row has its own adapter or none.

An adapter changes a weight by a product of two low-rank matrices. They are applied to the activations instead of merged
into the weight, so that requests with different adapters share the base weight in one batch (Chen et al. 2023,
arXiv:2310.18547; Sheng et al. 2023, arXiv:2311.03285).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.catalog._index_checks import Shapes, check_cuts
from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ADD_LOW_RANK"]


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
    """Assume adapters of equal rank, as many in use as there are rows; `y` is read and written."""
    num_tokens, total = call.shape("adapters")[0], call.shape("down")[0]
    num_adapters = max(call.shape("cu_ranks")[0] - 1, 1)
    num_used = min(num_tokens, num_adapters)
    weights = call.bytes_in("down", "up") * num_used // num_adapters
    read = call.bytes_in("y", "x", "cu_ranks", "adapters") + weights
    width = call.shape("x")[1] + call.shape("y")[1]
    return Cost(read, call.bytes_out("out"), 2 * num_tokens * width * total // num_adapters)


def _add_low_rank_check(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that `cu_ranks` are ranges of rows of `down` and `up`, and that `adapters` are their indices."""
    check_cuts("cu_ranks", arrays["cu_ranks"], shapes["down"][0])
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
"""What a request's adapter adds to the result of a projection: LoRA (Hu et al. 2021, arXiv:2106.09685).

An adapter changes a weight by a product of two thin matrices. Where rows meet these instead of a weight that was
changed, each row can have another adapter or none, and all requests share the weight (Chen et al. 2023,
arXiv:2310.18547; Sheng et al. 2023, arXiv:2311.03285).
"""
