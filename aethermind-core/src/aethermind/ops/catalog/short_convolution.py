"""The short convolution over the tokens of a sequence that recurrent layers apply to their projections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aethermind.ops.catalog._recurrent_states import (
    STATE_INPUTS,
    SequenceRows,
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

__all__ = ["CAUSAL_CONV1D"]


def _convolved(x: Array, w: Array, bias: Array | None, state: Array, sequence: SequenceRows) -> tuple[Array, Array]:
    """Return the sums [n, C] of a sequence's n rows, and its last J inputs [J, C]."""
    rows = x[sequence.rows]
    window = np.concatenate([sequence.initial(state, x.dtype), rows])
    out = np.zeros_like(rows) if bias is None else np.broadcast_to(bias, rows.shape).astype(x.dtype)
    for row, weight in enumerate(w):
        out = out + weight * window[row : row + len(rows)]
    return out, window[len(rows) :]


def _update(inputs: Sequence[Array | None], outputs: Sequence[Array], *, silu: bool) -> None:
    x, w, bias, state, *tables = inputs
    assert x is not None
    assert w is not None
    out, states = outputs
    out[...] = 0
    for sequence in sequences_of(*tables):
        total, last = _convolved(x, w, bias, state, sequence)
        out[sequence.rows] = total * sigmoid(total) if silu else total
        states[sequence.slot] = last


def _reference(x: Array, w: Array, bias: Array | None, state: Array, *tables: Array, silu: bool) -> tuple[Array, Array]:
    outputs = (np.zeros_like(x), state.copy())
    _update((x, w, bias, state, *tables), outputs, silu=silu)
    return outputs


def _term_magnitudes(
    x: Array, w: Array, bias: Array | None, state: Array, *tables: Array, silu: bool
) -> tuple[Array, Array]:
    """Return the terms of the sums, as the slope of silu carries them on; states are copied."""
    magnitude = None if bias is None else np.abs(bias)
    out = np.full_like(x, np.inf)
    for sequence in sequences_of(*tables):
        total, _ = _convolved(np.abs(x), np.abs(w), magnitude, np.abs(state), sequence)
        out[sequence.rows] = _MAX_SLOPE * total if silu else total
    return out, np.zeros_like(state)


_MAX_SLOPE = 1.1
"""An upper bound of the derivative of silu."""


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    batches = list(state_batches(rng))
    shapes = [(40, 3), (7, 3), (320, 3), (1, 1), (33, 2), (17, 3), (5, 3), (64, 4)]
    wide = state_batch(rng, "wide", [(1, 8), (3, 3)]), (1000, 3)
    for batch, (num_channels, length) in (*zip(batches, shapes, strict=True), wide):
        x, w = normal(rng, batch.num_rows, num_channels), normal(rng, length + 1, num_channels) * 0.5
        inputs = batch.states(rng, length, num_channels), *batch.tables
        label = f"{batch.label}_C{num_channels}_K{length + 1}"
        yield Sample(label, (x, w, None, *inputs), {"silu": True})
        yield Sample(f"{label}_bias", (x, w, normal(rng, num_channels), *inputs))


def _cost(call: Call) -> Cost:
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
    reference=_reference,
    update=_update,
    samples=_samples,
    term_magnitudes=_term_magnitudes,
    # For a very negative sum silu may be zero.
    tolerances=accumulated(absolute=1e-30),
    gathered=frozenset({"state"}),
    cost=_cost,
    check=check_state_slots,
)
"""A depthwise causal convolution, such as that of Mamba (Gu and Dao 2023, arXiv:2312.00752)."""
