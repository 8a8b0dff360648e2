"""Mixtures of experts: SwiGLU networks of which each token uses a few, and the operators that they consist of.

The weights of all experts are one stack, a matrix [num_experts · N, K] with expert after expert, so that its packs,
weight formats and scales are those of any matrix. `ids` [T, A] are the A experts of each token, from 0 to
num_experts - 1.

Kernels read the weights of chosen experts only. Decompositions compute all experts and then select the results of the
chosen ones: they need no kernel for experts, and the size of their graph does not depend on the number of experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from aethermind.ops.catalog._index_checks import Shapes, require_below
from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog.activations import sigmoid
from aethermind.ops.operator import EXACT, ONE_ROUNDING, Array, Call, Cost, Operator, Sample, accumulated
from aethermind.ops.schema import OpBuilder, OperatorSchema

__all__ = ["MOE_COMBINE", "MOE_GATE_UP_SILU", "MOE_LINEAR", "MOE_SWIGLU", "TAKE_EXPERTS"]

_MAX_SLOPE = 1.1
"""An upper bound of the derivative of g · sigmoid(alpha · g), by which an error of g is multiplied."""


class _Shape(NamedTuple):
    """The sizes of a sample; `num_chosen` is the number of experts of each token."""

    num_tokens: int
    hidden_size: int
    intermediate_size: int
    num_experts: int
    num_chosen: int

    def __str__(self) -> str:
        return f"T{self[0]}_D{self[1]}_I{self[2]}_E{self[3]}_A{self[4]}"


_SHAPES = (
    _Shape(3, 7, 37, 4, 2),
    _Shape(1, 64, 32, 8, 2),
    _Shape(1, 48, 16, 60, 8),
    _Shape(0, 8, 16, 4, 1),
    _Shape(1, 1, 1, 1, 1),
    _Shape(17, 32, 48, 8, 8),
    _Shape(35, 40, 33, 60, 4),
    _Shape(70, 33, 32, 4, 2),
    _Shape(133, 16, 16, 8, 2),
    _Shape(300, 16, 41, 4, 1),
    _Shape(5, 1100, 48, 4, 2),
    _Shape(2, 16, 1040, 4, 2),
)


def _shapes(rng: np.random.Generator) -> Iterator[tuple[str, _Shape, Array]]:
    """Yield labels, sizes and ids: random experts, one expert for all tokens, and few of many experts."""
    for shape in _SHAPES:
        yield str(shape), shape, _random_ids(rng, shape, shape.num_experts)
    same = _Shape(20, 32, 32, 8, 1)
    yield f"same_expert_{same}", same, np.full((20, 1), 5, np.int32)
    few = _Shape(40, 16, 32, 8, 2)
    yield f"half_of_experts_{few}", few, _random_ids(rng, few, 4) * 2 + 1


def _random_ids(rng: np.random.Generator, shape: _Shape, num_used: int) -> Array:
    """Return distinct experts of each token [T, A], out of the first `num_used`."""
    all_ids = np.tile(np.arange(num_used, dtype=np.int32), (shape.num_tokens, 1))
    return np.ascontiguousarray(rng.permuted(all_ids, axis=1)[:, : shape.num_chosen])


def _stack(rng: np.random.Generator, num_experts: int, num_outputs: int, num_inputs: int) -> Array:
    return weight(rng, num_experts * num_outputs, num_inputs)


def _per_expert(stack: Array, num_experts: int) -> Array:
    """Return a stack [E · N, K] or its bias [E · N] as [E, N, K] or [E, N]."""
    return stack.reshape(num_experts, len(stack) // num_experts, *stack.shape[1:])


def _chosen_products(x: Array, ids: Array, w: Array, bias: Array | None, num_experts: int) -> Array:
    """Return the products [T, A, N] of rows [T, A, K] with the weights of the experts `ids`."""
    product = np.einsum("tak,tank->tan", x, _per_expert(w, num_experts)[ids])
    return product if bias is None else product + _per_expert(bias, num_experts)[ids]


def _repeat_per_expert(x: Array, ids: Array) -> Array:
    """Return rows [T, K] repeated for each of the A experts of a token: [T, A, K]."""
    return np.broadcast_to(x[:, None], (len(x), ids.shape[1], x.shape[1]))


def _magnitude(x: Array | None) -> Array | None:
    return None if x is None else np.abs(x)


def _ids_check(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that `ids` are below the number of experts: the rows of the stack over those of one expert."""
    stack = shapes["w_down" if "w_down" in shapes else "w_gate" if "w_gate" in shapes else "w"]
    rows_per_expert = shapes["out"][-1]
    require_below("ids", arrays["ids"], stack[0] // max(rows_per_expert, 1))


# The simple operator of decompositions


def _take_experts_reference(all_results: Array, ids: Array, *, first: int, count: int) -> Array:
    return np.take_along_axis(all_results, ids[:, first : first + count, None].astype(np.int64), axis=1)


def _take_experts_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in (_SHAPES[0], *_SHAPES[2:9]):
        num_tokens, _, width, num_experts, count = shape
        all_results, ids = normal(rng, num_tokens, num_experts, width), _random_ids(rng, shape, num_experts)
        label = f"T{num_tokens}_E{num_experts}_N{width}_A{count}"
        yield Sample(label, (all_results, ids), {"count": count})
        yield Sample(f"{label}_last", (all_results, ids), {"first": count - 1, "count": 1})


def _take_experts_check(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    require_below("ids", arrays["ids"], shapes["all"][1])


TAKE_EXPERTS = Operator(
    schema=OperatorSchema.parse(
        "take_experts(all: F[T, E, N], ids: i32[T, A]; first: int = 0, count: int) -> (out: F[T, count, N])"
    ),
    summary="out[t, i] = all[t, ids[t, first + i]] for i from 0 to count - 1.",
    reference=_take_experts_reference,
    samples=_take_experts_samples,
    tolerances=EXACT,
    gathered=frozenset({"all"}),
    check=_take_experts_check,
)
"""Selects the results of each token's experts out of those of all experts."""


# Gate and up projections


def _moe_gate_up_silu_decompose(
    b: OpBuilder[Array],
    x: Array,
    ids: Array,
    w_gate: Array,
    w_up: Array,
    b_gate: Array | None,
    b_up: Array | None,
    *,
    num_experts: int,
    alpha: float,
    limit: float,
    up_offset: float,
) -> Array:
    def product(w: Array, bias: Array | None) -> Array:
        all_results = b.op("split_last", b.op("linear", x, w, bias), count=num_experts)
        return b.op("take_experts", all_results, ids, count=ids.shape[1])

    gate, up = product(w_gate, b_gate), product(w_up, b_up)
    if (alpha, limit, up_offset) == (1.0, 0.0, 0.0):
        return b.op("silu_mul", gate, up)
    return b.op("clamped_silu_mul", gate, up, alpha=alpha, limit=limit, up_offset=up_offset)


def _moe_gate_up_silu_magnitudes(
    x: Array,
    ids: Array,
    w_gate: Array,
    w_up: Array,
    b_gate: Array | None,
    b_up: Array | None,
    *,
    num_experts: int,
    alpha: float,
    limit: float,
    up_offset: float,
) -> Array:
    """Return the term magnitudes of the result: a first-order bound of what errors in both products change."""
    rows = _repeat_per_expert(x, ids)
    gate = _chosen_products(rows, ids, w_gate, b_gate, num_experts)
    up = _chosen_products(rows, ids, w_up, b_up, num_experts)
    if limit > 0:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    gate_magnitudes = _chosen_products(np.abs(rows), ids, np.abs(w_gate), _magnitude(b_gate), num_experts)
    up_magnitudes = _chosen_products(np.abs(rows), ids, np.abs(w_up), _magnitude(b_up), num_experts)
    from_gate = _MAX_SLOPE * gate_magnitudes * np.abs(up + up_offset)
    return from_gate + np.abs(gate * sigmoid(alpha * gate)) * up_magnitudes


_CLAMPED: Mapping[str, float] = {"alpha": 1.702, "limit": 1.5, "up_offset": 1.0}
"""The activation of gpt-oss, with a limit that random inputs reach."""


def _moe_gate_up_silu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, (num_tokens, hidden_size, width, num_experts, _), ids in _shapes(rng):
        gate, up = (_stack(rng, num_experts, width, hidden_size) for _ in range(2))
        inputs = (normal(rng, num_tokens, hidden_size), ids, gate, up)
        biases = tuple(normal(rng, num_experts * width) for _ in range(2))
        yield Sample(label, (*inputs, None, None), {"num_experts": num_experts})
        yield Sample(f"{label}_bias", (*inputs, *biases), {"num_experts": num_experts})
        yield Sample(f"{label}_clamped", (*inputs, *biases), {"num_experts": num_experts, **_CLAMPED})


def _chosen_expert_bytes(call: Call, *weights: str) -> int:
    """Return the bytes of these weights for as many experts as the tokens can have at most."""
    num_experts = int(call.attributes["num_experts"])
    num_tokens, num_chosen = call.shape("ids")
    return call.bytes_in(*weights) * min(num_experts, num_tokens * num_chosen) // num_experts


def _moe_gate_up_silu_cost(call: Call) -> Cost:
    num_tokens, num_chosen, width = call.shape("out")
    read = call.bytes_in("x", "ids") + _chosen_expert_bytes(call, "w_gate", "w_up", "b_gate", "b_up")
    return Cost(read, call.bytes_out("out"), 4 * num_tokens * num_chosen * width * call.shape("x")[1])


MOE_GATE_UP_SILU = Operator(
    schema=OperatorSchema.parse(
        """moe_gate_up_silu(x: F[T, D], ids: i32[T, A], w_gate: W[G, D], w_up: W[G, D], b_gate: F[G]?, b_up: F[G]?;
        num_experts: int, alpha: float = 1.0, limit: float = 0.0, up_offset: float = 0.0)
        -> (out: F[T, A, G/num_experts])"""
    ),
    summary=(
        "For expert e = ids[t, a], whose weights are its G / num_experts rows: g = x[t] @ w_gate[e].T + b_gate[e], "
        "u = x[t] @ w_up[e].T + b_up[e]; with limit > 0, g = min(g, limit) and u = clamp(u, -limit, limit); "
        "out[t, a] = g * sigmoid(alpha * g) * (u + up_offset)."
    ),
    decompose=_moe_gate_up_silu_decompose,
    samples=_moe_gate_up_silu_samples,
    term_magnitudes=_moe_gate_up_silu_magnitudes,
    # As in gate_up_silu: the gate product and its activation may be rounded, and so may the up product.
    tolerances=accumulated(inner_roundings=2),
    cost=_moe_gate_up_silu_cost,
    check=_ids_check,
)
"""The first half of the SwiGLU networks of each token's experts."""


# Down projections


def _moe_linear_decompose(
    b: OpBuilder[Array], x: Array, ids: Array, w: Array, bias: Array | None, *, num_experts: int
) -> Array:
    """Multiply the A rows of each token one after another with all experts, and select the result of the right one.

    One product for all rows would have T · A rows, which is not a dim that graphs can express.
    """
    out = None
    for index in range(ids.shape[1]):
        all_results = b.op("linear", b.op("select", x, index=index), w, bias)
        result = b.op("take_experts", b.op("split_last", all_results, count=num_experts), ids, first=index, count=1)
        out = result if out is None else b.op("concat", out, result)
    return out


def _moe_linear_magnitudes(x: Array, ids: Array, w: Array, bias: Array | None, *, num_experts: int) -> Array:
    return _chosen_products(np.abs(x), ids, np.abs(w), _magnitude(bias), num_experts)


def _moe_linear_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, (num_tokens, num_outputs, num_inputs, num_experts, num_chosen), ids in _shapes(rng):
        w = _stack(rng, num_experts, num_outputs, num_inputs)
        inputs = (normal(rng, num_tokens, num_chosen, num_inputs), ids, w)
        yield Sample(label, (*inputs, None), {"num_experts": num_experts})
        bias = normal(rng, num_experts * num_outputs)
        yield Sample(f"{label}_bias", (*inputs, bias), {"num_experts": num_experts})


def _moe_linear_cost(call: Call) -> Cost:
    num_tokens, num_chosen, num_outputs = call.shape("out")
    read = call.bytes_in("x", "ids") + _chosen_expert_bytes(call, "w", "bias")
    return Cost(read, call.bytes_out("out"), 2 * num_tokens * num_chosen * num_outputs * call.shape("x")[2])


MOE_LINEAR = Operator(
    schema=OperatorSchema.parse(
        """moe_linear(x: F[T, A, I], ids: i32[T, A], w: W[N, I], bias: F[N]?; num_experts: int)
        -> (out: F[T, A, N/num_experts])"""
    ),
    summary="out[t, a] = x[t, a] @ w[e].T + bias[e] for expert e = ids[t, a], whose weights are N / num_experts rows.",
    decompose=_moe_linear_decompose,
    samples=_moe_linear_samples,
    term_magnitudes=_moe_linear_magnitudes,
    tolerances=ONE_ROUNDING,
    cost=_moe_linear_cost,
    check=_ids_check,
)
"""The product of each of a token's A rows with the weight of its expert: the down projections."""


# The weighted sum


def _moe_combine_reference(x: Array, weights: Array) -> Array:
    out = np.zeros((x.shape[0], x.shape[2]), x.dtype)
    for index in range(x.shape[1]):
        out += weights[:, index, None] * x[:, index]
    return out


def _moe_combine_magnitudes(x: Array, weights: Array) -> Array:
    return _moe_combine_reference(np.abs(x), np.abs(weights))


def _moe_combine_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_chosen, hidden_size in (
        (3, 2, 7),
        (1, 8, 64),
        (0, 4, 8),
        (17, 1, 33),
        (5, 6, 2080),
        (133, 8, 40),
        (300, 2, 17),
    ):
        inputs = (normal(rng, num_tokens, num_chosen, hidden_size), rng.random((num_tokens, num_chosen)))
        yield Sample(f"T{num_tokens}_A{num_chosen}_D{hidden_size}", inputs)


def _moe_combine_cost(call: Call) -> Cost:
    num_tokens, num_chosen, hidden_size = call.shape("x")
    return Cost(call.bytes_in("x", "weights"), call.bytes_out("out"), 2 * num_tokens * num_chosen * hidden_size)


MOE_COMBINE = Operator(
    schema=OperatorSchema.parse("moe_combine(x: F[T, A, D], weights: f32[T, A]) -> (out: F[T, D])"),
    summary="out[t] is the sum over a of weights[t, a] * x[t, a], in float32 and in the order of a.",
    reference=_moe_combine_reference,
    samples=_moe_combine_samples,
    term_magnitudes=_moe_combine_magnitudes,
    tolerances=ONE_ROUNDING,
    cost=_moe_combine_cost,
)
"""The sum of the results of a token's experts, weighted by its router; with A = 1, each row times its weight."""


# The whole network


def _moe_swiglu_decompose(
    b: OpBuilder[Array],
    x: Array,
    ids: Array,
    weights: Array,
    w_gate: Array,
    w_up: Array,
    w_down: Array,
    b_gate: Array | None,
    b_up: Array | None,
    b_down: Array | None,
    *,
    num_experts: int,
    **activation: float,
) -> Array:
    inner = b.op("moe_gate_up_silu", x, ids, w_gate, w_up, b_gate, b_up, num_experts=num_experts, **activation)
    return b.op("moe_combine", b.op("moe_linear", inner, ids, w_down, b_down, num_experts=num_experts), weights)


def _moe_swiglu_magnitudes(
    x: Array,
    ids: Array,
    weights: Array,
    w_gate: Array,
    w_up: Array,
    w_down: Array,
    b_gate: Array | None,
    b_up: Array | None,
    b_down: Array | None,
    *,
    num_experts: int,
    **activation: float,
) -> Array:
    inner = _moe_gate_up_silu_magnitudes(x, ids, w_gate, w_up, b_gate, b_up, num_experts=num_experts, **activation)
    return _moe_combine_magnitudes(_moe_linear_magnitudes(inner, ids, w_down, b_down, num_experts=num_experts), weights)


def _moe_swiglu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for label, (num_tokens, hidden_size, width, num_experts, num_chosen), ids in _shapes(rng):
        inputs = (
            normal(rng, num_tokens, hidden_size),
            ids,
            rng.random((num_tokens, num_chosen)),
            _stack(rng, num_experts, width, hidden_size),
            _stack(rng, num_experts, width, hidden_size),
            _stack(rng, num_experts, hidden_size, width),
        )
        biases = tuple(normal(rng, num_experts * size) for size in (width, width, hidden_size))
        yield Sample(label, (*inputs, None, None, None), {"num_experts": num_experts})
        yield Sample(f"{label}_clamped", (*inputs, *biases), {"num_experts": num_experts, **_CLAMPED})


def _moe_swiglu_cost(call: Call) -> Cost:
    num_products = call.shape("ids")[0] * call.shape("ids")[1]
    num_experts = int(call.attributes["num_experts"])
    names = ("w_gate", "w_up", "w_down")
    read = call.bytes_in("x", "ids", "weights") + _chosen_expert_bytes(call, *names, "b_gate", "b_up", "b_down")
    num_weights = sum(rows * columns for rows, columns in map(call.shape, names)) // num_experts
    return Cost(read, call.bytes_out("out"), 2 * num_products * num_weights)


MOE_SWIGLU = Operator(
    schema=OperatorSchema.parse(
        """moe_swiglu(x: F[T, D], ids: i32[T, A], weights: f32[T, A], w_gate: W[G, D], w_up: W[G, D], w_down: W[M, I],
        b_gate: F[G]?, b_up: F[G]?, b_down: F[M]?; num_experts: int, alpha: float = 1.0, limit: float = 0.0,
        up_offset: float = 0.0) -> (out: F[T, M/num_experts])"""
    ),
    summary="moe_combine(moe_linear(moe_gate_up_silu(x, ids, w_gate, w_up), ids, w_down), weights), with the biases.",
    decompose=_moe_swiglu_decompose,
    samples=_moe_swiglu_samples,
    term_magnitudes=_moe_swiglu_magnitudes,
    # The roundings of moe_gate_up_silu, and those of the results of both halves.
    tolerances=accumulated(inner_roundings=4),
    cost=_moe_swiglu_cost,
    check=_ids_check,
)
"""The feed-forward network of a mixture of experts (Shazeer et al. 2017, arXiv:1701.06538) with SwiGLU experts."""
