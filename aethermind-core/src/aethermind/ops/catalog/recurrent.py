"""Linear recurrences over the tokens of a sequence, whose state is a matrix per head: the gated delta rule and Mamba 2.

Both keep a state S [D, E] per head, a sum of outer products of keys and values. For each token it decays, then takes up
the token's key k [D] and update u [E], and the query q [D] reads it:

    S = decay * S + k uᵀ        out = Sᵀ q

All sums are float32, and tokens are processed one by one in order, so that results do not depend on how a sequence is
divided into steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from aethermind.ops.catalog._recurrent_states import (
    STATE_INPUTS,
    StateBatch,
    check_state_slots,
    sequences_of,
    state_batch,
    state_batches,
    state_bytes,
)
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import accumulated
from aethermind.ops.catalog.activations import sigmoid
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["GATED_DELTA_RULE", "SSD_SCAN"]


_TOLERANCES = accumulated(absolute=1e-30)
"""What has decayed far enough is denormal in float32; zero is correct, too."""


class _Recurrence(NamedTuple):
    """The inputs of a recurrence: q and k [T, H, D], v [T, H, E], decay [T, H]; with beta [T, H], a delta rule."""

    q: Array
    k: Array
    v: Array
    decay: Array
    beta: Array | None

    def update_of(self, token: int, state: Array) -> Array:
        """Return what a token adds to each row of the decayed state [H, D, E], times its key: u [H, E]."""
        if self.beta is None:
            return self.v[token]
        predicted = np.einsum("hd,hde->he", self.k[token], state)
        return self.beta[token][:, None] * (self.v[token] - predicted)

    def run(self, rows: slice, state: Array, out: Array) -> None:
        """Take up the tokens of a sequence in its state [H, D, E] and write their rows of `out` [T, H, E]."""
        for token in range(rows.start, rows.stop):
            state *= self.decay[token][:, None, None]
            state += self.k[token][:, :, None] * self.update_of(token, state)[:, None, :]
            out[token] = np.einsum("hd,hde->he", self.q[token], state)

    def terms(self, rows: slice, state: Array, magnitude: Array, out: Array) -> None:
        """Write the sums of magnitudes of terms to `magnitude`, that of the state, and to `out`.

        Errors of a state do not grow, so terms of a prediction are those of the actual state, not of its magnitude.
        """
        keys, queries = np.abs(self.k), np.abs(self.q)
        for token in range(rows.start, rows.stop):
            decay = self.decay[token][:, None, None]
            state *= decay
            magnitude *= decay
            terms = np.abs(self.v[token])
            if self.beta is not None:
                predicted = np.einsum("hd,hde->he", keys[token], np.abs(state))
                terms = self.beta[token][:, None] * (terms + predicted)
            state += self.k[token][:, :, None] * self.update_of(token, state)[:, None, :]
            magnitude += keys[token][:, :, None] * terms[:, None, :]
            out[token] = np.einsum("hd,hde->he", queries[token], magnitude)


def _run(recurrence: _Recurrence, state: Array, tables: Sequence[Array], outputs: Sequence[Array]) -> None:
    out, states = outputs
    for sequence in sequences_of(*tables):
        own = sequence.initial(state, recurrence.v.dtype)
        recurrence.run(sequence.rows, own, out)
        states[sequence.slot] = own


def _terms(recurrence: _Recurrence, state: Array, tables: Sequence[Array]) -> tuple[Array, Array]:
    """Return the magnitudes of the rows of results, infinite for padding rows, and of states, 0 for unused slots."""
    out, states = np.full_like(recurrence.v, np.inf), np.zeros_like(state)
    for sequence in sequences_of(*tables):
        own = sequence.initial(state, recurrence.v.dtype)
        magnitude = np.abs(own)
        recurrence.terms(sequence.rows, own, magnitude, out)
        states[sequence.slot] = magnitude
    return out, states


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _cost(call: Call, *rows: str, flops_per_element: int) -> Cost:
    """Return the cost of a recurrence whose inputs beside the state are `rows`."""
    read, written = state_bytes(call)
    _, num_heads, depth, width = call.shape("state")
    flops = flops_per_element * call.shape("out")[0] * num_heads * depth * width
    return Cost(call.bytes_in(*rows) + read, call.bytes_out("out") + written, flops)


class _Shape(NamedTuple):
    """The sizes of a sample: groups of heads, heads, state rows and columns of a head."""

    num_groups: int
    num_heads: int
    depth: int
    width: int

    def __str__(self) -> str:
        return f"G{self[0]}_H{self[1]}_D{self[2]}_E{self[3]}"


def _batches(rng: np.random.Generator) -> Iterator[tuple[StateBatch, _Shape]]:
    """Yield batches with shapes: odd sizes, those of models, and columns of several and of a part of a vector."""
    shapes = (
        _Shape(2, 4, 16, 32),
        _Shape(1, 2, 9, 7),
        _Shape(2, 4, 64, 80),
        _Shape(1, 1, 1, 1),
        _Shape(1, 2, 33, 65),
        _Shape(1, 1, 8, 17),
        _Shape(1, 3, 8, 16),
        _Shape(3, 3, 16, 48),
    )
    yield from zip(state_batches(rng), shapes, strict=True)
    yield state_batch(rng, "model", [(1, 12), (3, 3)]), _Shape(1, 2, 128, 128)
    yield state_batch(rng, "long_prompt", [(150, 150), (2, 300)]), _Shape(1, 2, 16, 24)


# The gated delta rule


def _delta_rule(inputs: Sequence[Array], *, scale: float, eps: float) -> _Recurrence:
    qkv, a, b, a_log, dt_bias, state = inputs[:6]
    _, num_heads, depth, width = state.shape
    num_groups = (qkv.shape[1] - num_heads * width) // (2 * depth)
    q, k, v = np.split(qkv, [num_groups * depth, 2 * num_groups * depth], axis=1)
    return _Recurrence(
        _of_heads(_l2_normed(q.reshape(-1, num_groups, depth), eps), num_heads) * scale,
        _of_heads(_l2_normed(k.reshape(-1, num_groups, depth), eps), num_heads),
        v.reshape(-1, num_heads, width),
        np.exp(-np.exp(a_log) * _softplus(a + dt_bias)),
        sigmoid(b),
    )


def _l2_normed(x: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)


def _of_heads(x: Array, num_heads: int) -> Array:
    """Return vectors of groups [T, G, D] for each of their heads, [T, H, D]."""
    return x.repeat(num_heads // x.shape[1], axis=1)


def _delta_rule_update(inputs: Sequence[Array], outputs: Sequence[Array], *, scale: float, eps: float) -> None:
    outputs[0][...] = 0
    _run(_delta_rule(inputs, scale=scale, eps=eps), inputs[5], inputs[6:], outputs)


def _delta_rule_reference(*inputs: Array, scale: float, eps: float) -> tuple[Array, Array]:
    qkv, state = inputs[0], inputs[5]
    outputs = np.zeros((len(qkv), state.shape[1], state.shape[3]), qkv.dtype), state.copy()
    _delta_rule_update(inputs, outputs, scale=scale, eps=eps)
    return outputs


def _delta_rule_magnitudes(*inputs: Array, scale: float, eps: float) -> tuple[Array, Array]:
    return _terms(_delta_rule(inputs, scale=scale, eps=eps), inputs[5], inputs[6:])


def _delta_rule_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for batch, shape in _batches(rng):
        num_groups, num_heads, depth, width = shape
        rows = batch.num_rows
        qkv = normal(rng, rows, 2 * num_groups * depth + num_heads * width)
        gates = normal(rng, rows, num_heads), normal(rng, rows, num_heads) * 2
        rates = rng.uniform(-4, 2.5, num_heads), normal(rng, num_heads)
        inputs = (qkv, *gates, *rates, batch.states(rng, num_heads, depth, width), *batch.tables)
        yield Sample(f"{batch.label}_{shape}", inputs, {"scale": depth**-0.5})
    batch = state_batch(rng, "extreme_gates", [(3, 9), (2, 2)])
    gate, rates = _extreme(), (np.array([1.0]), np.array([-1.0]))
    qkv, states = normal(rng, 5, 10), batch.states(rng, 1, 3, 4)
    yield Sample("extreme_gates", (qkv, gate, gate[::-1].copy(), *rates, states, *batch.tables), {"scale": 0.5})
    yield Sample("zero_keys", (qkv * 0, gate, gate, *rates, states, *batch.tables), {"scale": 0.5})


def _extreme() -> Array:
    """Return gates [5, 1] whose sigmoid and softplus saturate."""
    return np.array([[60.0], [-60.0], [0.0], [300.0], [-300.0]])


GATED_DELTA_RULE = Operator(
    schema=OperatorSchema.parse(
        f"""gated_delta_rule(qkv: F[T, C], a: F[T, H], b: F[T, H], a_log: f32[H], dt_bias: f32[H],
        state: f32[N, H, D, E], {STATE_INPUTS}; scale: float, eps: float = 1e-6)
        -> (out: F[T, H, E], state_out: f32[N, H, D, E] = state)"""
    ),
    summary=(
        "A row of qkv is q [G, D], k [G, D] and v [H, E]; H / G heads share q and k, which are divided by "
        "sqrt(sum of squares + eps), and q is multiplied by scale. For each token and head, S = state * "
        "exp(-exp(a_log) * softplus(a + dt_bias)), state = S + k (sigmoid(b) * (v - Sᵀ k))ᵀ, out = stateᵀ q, in "
        "float32. The state of a new sequence (seqlens_k is its number of rows) counts as zero."
    ),
    reference=_delta_rule_reference,
    update=_delta_rule_update,
    samples=_delta_rule_samples,
    term_magnitudes=_delta_rule_magnitudes,
    tolerances=_TOLERANCES,
    gathered=frozenset({"state"}),
    cost=lambda call: _cost(call, "qkv", "a", "b", "a_log", "dt_bias", flops_per_element=7),
    check=check_state_slots,
)
"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464) with the gates of Qwen3-Next."""


# Mamba 2


def _scan(inputs: Sequence[Array], *, dt_min: float, dt_max: float) -> tuple[_Recurrence, Array]:
    """Return the recurrence, and what is added to its results: d · x [T, H, P]."""
    xbc, dt, a_log, dt_bias, d, state = inputs[:6]
    _, num_heads, depth, width = state.shape
    num_groups = (xbc.shape[1] - num_heads * width) // (2 * depth)
    cuts = [num_heads * width, num_heads * width + num_groups * depth]
    x, b, c = np.split(xbc, cuts, axis=1)
    x = x.reshape(-1, num_heads, width)
    step = np.maximum(_softplus(dt + dt_bias), dt_min)
    if dt_max > 0:
        step = np.minimum(step, dt_max)
    c, b = (_of_heads(rows.reshape(-1, num_groups, depth), num_heads) for rows in (c, b))
    return _Recurrence(c, b, step[:, :, None] * x, np.exp(-np.exp(a_log) * step), None), d[:, None] * x


def _scan_update(inputs: Sequence[Array], outputs: Sequence[Array], *, dt_min: float, dt_max: float) -> None:
    recurrence, skipped = _scan(inputs, dt_min=dt_min, dt_max=dt_max)
    out = np.zeros_like(skipped)
    _run(recurrence, inputs[5], inputs[6:], (out, outputs[1]))
    outputs[0][...] = out + skipped


def _scan_reference(*inputs: Array, dt_min: float, dt_max: float) -> tuple[Array, Array]:
    xbc, state = inputs[0], inputs[5]
    outputs = np.zeros((len(xbc), state.shape[1], state.shape[3]), xbc.dtype), state.copy()
    _scan_update(inputs, outputs, dt_min=dt_min, dt_max=dt_max)
    return outputs


def _scan_magnitudes(*inputs: Array, dt_min: float, dt_max: float) -> tuple[Array, Array]:
    recurrence, skipped = _scan(inputs, dt_min=dt_min, dt_max=dt_max)
    out, states = _terms(recurrence, inputs[5], inputs[6:])
    return out + np.abs(skipped), states


def _scan_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for batch, shape in _batches(rng):
        num_groups, num_heads, depth, width = shape
        rows = batch.num_rows
        xbc = normal(rng, rows, num_heads * width + 2 * num_groups * depth)
        rates = rng.uniform(-3, 2.5, num_heads), normal(rng, num_heads), normal(rng, num_heads)
        inputs = (xbc, normal(rng, rows, num_heads), *rates, batch.states(rng, num_heads, depth, width), *batch.tables)
        label = f"{batch.label}_{shape}"
        yield Sample(label, inputs)
        if batch.label in ("mixed", "decodes"):
            yield Sample(f"{label}_limited", inputs, {"dt_min": 0.5, "dt_max": 1.0})
    batch = state_batch(rng, "extreme_steps", [(3, 9), (2, 2)])
    head = np.array([1.0]), np.array([-1.0]), np.array([0.5])
    states = batch.states(rng, 1, 3, 4)
    yield Sample("extreme_steps", (normal(rng, 5, 10), _extreme(), *head, states, *batch.tables))


SSD_SCAN = Operator(
    schema=OperatorSchema.parse(
        f"""ssd_scan(xbc: F[T, X], dt: F[T, H], a_log: f32[H], dt_bias: f32[H], d: f32[H], state: f32[N, H, M, P],
        {STATE_INPUTS}; dt_min: float = 0.0, dt_max: float = 0.0)
        -> (out: F[T, H, P], state_out: f32[N, H, M, P] = state)"""
    ),
    summary=(
        "A row of xbc is x [H, P], B [G, M] and C [G, M]; H / G heads share B and C. For each token and head, step = "
        "softplus(dt + dt_bias), at least dt_min and, if dt_max > 0, at most dt_max; state = state * "
        "exp(-exp(a_log) * step) + B (step * x)ᵀ; out = stateᵀ C + d * x, in float32. The state of a new sequence "
        "(seqlens_k is its number of rows) counts as zero."
    ),
    reference=_scan_reference,
    update=_scan_update,
    samples=_scan_samples,
    term_magnitudes=_scan_magnitudes,
    tolerances=_TOLERANCES,
    gathered=frozenset({"state"}),
    cost=lambda call: _cost(call, "xbc", "dt", "a_log", "dt_bias", "d", flops_per_element=5),
    check=check_state_slots,
)
"""The state space model of Mamba 2 (Dao and Gu 2024, arXiv:2405.21060)."""
