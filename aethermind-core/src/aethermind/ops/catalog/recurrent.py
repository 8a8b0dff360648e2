"""Operators of recurrent layers: the gated delta rule, the scan of Mamba 2, and the short convolution before them.

The two recurrences are linear. They keep a state S [D, E] for each head, a sum of outer products of keys and values.
Each token multiplies the state by a decay, adds the product of its key k [D] and an update u [E], and multiplies the
result by its query q [D]:

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
    SequenceRows,
    StateBatch,
    check_state_slots,
    sequences_of,
    state_batch,
    state_batches,
    state_bytes,
)
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog.activations import sigmoid
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample, accumulated
from aethermind.ops.schema import OperatorSchema

__all__ = ["CAUSAL_CONV1D", "GATED_DELTA_RULE", "SSD_SCAN"]


_TOLERANCES = accumulated(absolute=1e-30)
"""A state that has decayed for long is denormal in float32; zero is correct, too."""


class _Recurrence(NamedTuple):
    """The inputs of a recurrence: q and k [T, H, D], v [T, H, E], decay [T, H].

    With beta [T, H] it is a delta rule, without it (None) the scan of Mamba 2.
    """

    q: Array
    k: Array
    v: Array
    decay: Array
    beta: Array | None

    def update_of(self, token: int, state: Array) -> Array:
        """Return the update u [H, E] of a token, given the decayed state [H, D, E]."""
        if self.beta is None:
            return self.v[token]
        predicted = np.einsum("hd,hde->he", self.k[token], state)
        return self.beta[token][:, None] * (self.v[token] - predicted)

    def run(self, rows: slice, state: Array, out: Array) -> None:
        """Update the state [H, D, E] of a sequence by its tokens, in place, and write their rows of `out` [T, H, E]."""
        for token in range(rows.start, rows.stop):
            state *= self.decay[token][:, None, None]
            state += self.k[token][:, :, None] * self.update_of(token, state)[:, None, :]
            out[token] = np.einsum("hd,hde->he", self.q[token], state)

    def run_magnitudes(self, rows: slice, state: Array, magnitude: Array, out: Array) -> None:
        """Update the state and its term magnitudes [H, D, E] by the tokens of a sequence; write those of `out`.

        A delta rule does not amplify errors of the state. Therefore the terms of its prediction are computed from the
        actual state, not from the state's magnitudes.
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
    """Run a recurrence over all sequences; `tables` are the inputs of `STATE_INPUTS`."""
    out, states = outputs
    for sequence in sequences_of(*tables):
        sequence_state = sequence.initial(state, recurrence.v.dtype)
        recurrence.run(sequence.rows, sequence_state, out)
        states[sequence.slot] = sequence_state


def _term_magnitudes(recurrence: _Recurrence, state: Array, tables: Sequence[Array]) -> tuple[Array, Array]:
    """Return term magnitudes of the results, infinite for padding rows, and of the states, 0 for unused slots."""
    out, states = np.full_like(recurrence.v, np.inf), np.zeros_like(state)
    for sequence in sequences_of(*tables):
        sequence_state = sequence.initial(state, recurrence.v.dtype)
        magnitude = np.abs(sequence_state)
        recurrence.run_magnitudes(sequence.rows, sequence_state, magnitude, out)
        states[sequence.slot] = magnitude
    return out, states


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _cost(call: Call, *rows: str, flops_per_element: int) -> Cost:
    """Return the cost of a recurrence whose other inputs than the state are `rows`."""
    read, written = state_bytes(call)
    _, num_heads, key_dim, value_dim = call.shape("state")
    flops = flops_per_element * call.shape("out")[0] * num_heads * key_dim * value_dim
    return Cost(call.bytes_in(*rows) + read, call.bytes_out("out") + written, flops)


class _Shape(NamedTuple):
    """The sizes of a sample: groups of heads, heads, and the two dims of a head's state [D, E]."""

    num_groups: int
    num_heads: int
    key_dim: int
    value_dim: int

    def __str__(self) -> str:
        return f"G{self[0]}_H{self[1]}_D{self[2]}_E{self[3]}"


def _batches(rng: np.random.Generator) -> Iterator[tuple[StateBatch, _Shape]]:
    """Yield batches with shapes: odd sizes, those of models, and rows longer and shorter than a vector register."""
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
    _, num_heads, key_dim, value_dim = state.shape
    num_groups = (qkv.shape[1] - num_heads * value_dim) // (2 * key_dim)
    q, k, v = np.split(qkv, [num_groups * key_dim, 2 * num_groups * key_dim], axis=1)
    return _Recurrence(
        _repeat_groups(_l2_normed(q.reshape(-1, num_groups, key_dim), eps), num_heads) * scale,
        _repeat_groups(_l2_normed(k.reshape(-1, num_groups, key_dim), eps), num_heads),
        v.reshape(-1, num_heads, value_dim),
        np.exp(-np.exp(a_log) * _softplus(a + dt_bias)),
        sigmoid(b),
    )


def _l2_normed(x: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)


def _repeat_groups(x: Array, num_heads: int) -> Array:
    """Return the vectors of groups [T, G, D] repeated for each head of the group, [T, H, D]."""
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
    return _term_magnitudes(_delta_rule(inputs, scale=scale, eps=eps), inputs[5], inputs[6:])


def _delta_rule_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for batch, shape in _batches(rng):
        num_groups, num_heads, key_dim, value_dim = shape
        rows = batch.num_rows
        qkv = normal(rng, rows, 2 * num_groups * key_dim + num_heads * value_dim)
        gates = normal(rng, rows, num_heads), normal(rng, rows, num_heads) * 2
        rates = rng.uniform(-4, 2.5, num_heads), normal(rng, num_heads)
        inputs = (qkv, *gates, *rates, batch.states(rng, num_heads, key_dim, value_dim), *batch.tables)
        yield Sample(f"{batch.label}_{shape}", inputs, {"scale": key_dim**-0.5})
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
    """Return the recurrence, and the skip connection d · x [T, H, P], which is added to its results."""
    xbc, dt, a_log, dt_bias, d, state = inputs[:6]
    _, num_heads, key_dim, value_dim = state.shape
    num_groups = (xbc.shape[1] - num_heads * value_dim) // (2 * key_dim)
    offsets = [num_heads * value_dim, num_heads * value_dim + num_groups * key_dim]
    x, b, c = np.split(xbc, offsets, axis=1)
    x = x.reshape(-1, num_heads, value_dim)
    step = np.maximum(_softplus(dt + dt_bias), dt_min)
    if dt_max > 0:
        step = np.minimum(step, dt_max)
    c, b = (_repeat_groups(rows.reshape(-1, num_groups, key_dim), num_heads) for rows in (c, b))
    return _Recurrence(c, b, step[:, :, None] * x, np.exp(-np.exp(a_log) * step), None), d[:, None] * x


def _scan_update(inputs: Sequence[Array], outputs: Sequence[Array], *, dt_min: float, dt_max: float) -> None:
    recurrence, skip = _scan(inputs, dt_min=dt_min, dt_max=dt_max)
    out = np.zeros_like(skip)
    _run(recurrence, inputs[5], inputs[6:], (out, outputs[1]))
    outputs[0][...] = out + skip


def _scan_reference(*inputs: Array, dt_min: float, dt_max: float) -> tuple[Array, Array]:
    xbc, state = inputs[0], inputs[5]
    outputs = np.zeros((len(xbc), state.shape[1], state.shape[3]), xbc.dtype), state.copy()
    _scan_update(inputs, outputs, dt_min=dt_min, dt_max=dt_max)
    return outputs


def _scan_magnitudes(*inputs: Array, dt_min: float, dt_max: float) -> tuple[Array, Array]:
    recurrence, skip = _scan(inputs, dt_min=dt_min, dt_max=dt_max)
    out, states = _term_magnitudes(recurrence, inputs[5], inputs[6:])
    return out + np.abs(skip), states


def _scan_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for batch, shape in _batches(rng):
        num_groups, num_heads, key_dim, value_dim = shape
        rows = batch.num_rows
        xbc = normal(rng, rows, num_heads * value_dim + 2 * num_groups * key_dim)
        rates = rng.uniform(-3, 2.5, num_heads), normal(rng, num_heads), normal(rng, num_heads)
        inputs = (
            xbc,
            normal(rng, rows, num_heads),
            *rates,
            batch.states(rng, num_heads, key_dim, value_dim),
            *batch.tables,
        )
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


# The convolution before a recurrence


def _convolve(x: Array, w: Array, bias: Array | None, state: Array, sequence: SequenceRows) -> tuple[Array, Array]:
    """Return the convolution [n, C] of a sequence's n rows, and its last J inputs [J, C], which are its new state."""
    rows = x[sequence.rows]
    window = np.concatenate([sequence.initial(state, x.dtype), rows])
    out = np.zeros_like(rows) if bias is None else np.broadcast_to(bias, rows.shape).astype(x.dtype)
    for row, weight in enumerate(w):
        out = out + weight * window[row : row + len(rows)]
    return out, window[len(rows) :]


def _conv1d_update(inputs: Sequence[Array | None], outputs: Sequence[Array], *, silu: bool) -> None:
    x, w, bias, state, *tables = inputs
    assert x is not None
    assert w is not None
    out, states = outputs
    out[...] = 0
    for sequence in sequences_of(*tables):
        total, last = _convolve(x, w, bias, state, sequence)
        out[sequence.rows] = total * sigmoid(total) if silu else total
        states[sequence.slot] = last


def _conv1d_reference(
    x: Array, w: Array, bias: Array | None, state: Array, *tables: Array, silu: bool
) -> tuple[Array, Array]:
    outputs = (np.zeros_like(x), state.copy())
    _conv1d_update((x, w, bias, state, *tables), outputs, silu=silu)
    return outputs


def _conv1d_term_magnitudes(
    x: Array, w: Array, bias: Array | None, state: Array, *tables: Array, silu: bool
) -> tuple[Array, Array]:
    """Return the term magnitudes of the sums, times a bound of silu's derivative; 0 for states, which are copied."""
    magnitude = None if bias is None else np.abs(bias)
    out = np.full_like(x, np.inf)
    for sequence in sequences_of(*tables):
        total, _ = _convolve(np.abs(x), np.abs(w), magnitude, np.abs(state), sequence)
        out[sequence.rows] = _MAX_SILU_SLOPE * total if silu else total
    return out, np.zeros_like(state)


_MAX_SILU_SLOPE = 1.1
"""An upper bound of the derivative of silu."""


def _conv1d_samples(rng: np.random.Generator) -> Iterator[Sample]:
    batches = list(state_batches(rng))
    shapes = [(40, 3), (7, 3), (320, 3), (1, 1), (33, 2), (17, 3), (5, 3), (64, 4)]
    wide = state_batch(rng, "wide", [(1, 8), (3, 3)]), (1000, 3)
    for batch, (num_channels, length) in (*zip(batches, shapes, strict=True), wide):
        x, w = normal(rng, batch.num_rows, num_channels), normal(rng, length + 1, num_channels) * 0.5
        inputs = batch.states(rng, length, num_channels), *batch.tables
        label = f"{batch.label}_C{num_channels}_K{length + 1}"
        yield Sample(label, (x, w, None, *inputs), {"silu": True})
        yield Sample(f"{label}_bias", (x, w, normal(rng, num_channels), *inputs))


def _conv1d_cost(call: Call) -> Cost:
    read, written = state_bytes(call)
    num_tokens, num_channels = call.shape("x")
    flops = 2 * num_tokens * num_channels * call.shape("w")[0]
    return Cost(call.bytes_in("x", "w", "bias") + read, call.bytes_out("out") + written, flops)


CAUSAL_CONV1D = Operator(
    schema=OperatorSchema.parse(
        f"""causal_conv1d(x: F[T, C], w: F[J+1, C], bias: F[C]?, state: f32[N, J, C], {STATE_INPUTS};
        silu: bool = False) -> (out: F[T, C], state_out: f32[N, J, C] = state)"""
    ),
    summary=(
        "out[t] = bias + the sum over j of w[j] * x[t - J + j], channel by channel, then silu if set. Rows before the "
        "first of a sequence are those of its state, which then holds the sequence's last J rows; the state of a new "
        "sequence (seqlens_k is its number of rows) counts as zero."
    ),
    reference=_conv1d_reference,
    update=_conv1d_update,
    samples=_conv1d_samples,
    term_magnitudes=_conv1d_term_magnitudes,
    # For a very negative sum silu may be zero.
    tolerances=accumulated(absolute=1e-30),
    gathered=frozenset({"state"}),
    cost=_conv1d_cost,
    check=check_state_slots,
)
"""A depthwise causal convolution, such as that of Mamba (Gu and Dao 2023, arXiv:2312.00752)."""
