"""Chooses one token a row, with the row's own temperature and cuts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["SAMPLE_TOKENS"]


def _reference(logits: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array, uniform: Array) -> Array:
    rows = zip(logits, temperature, top_k, top_p, min_p, uniform, strict=True)
    return np.array([_sample(*row) for row in rows], np.int32)


def _sample(logits: Array, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    if temperature == 0 or not np.isfinite(logits.max()):  # without numbers there are no shares
        return int(np.argmax(logits))
    # A running sum over a large vocabulary loses the tail in float32.
    logits = logits.astype(np.float64)
    weights = np.exp((logits - logits.max()) / float(temperature))
    if top_k == 0 and top_p >= 1 and min_p <= 0:
        return _invert(weights, uniform)
    order = np.argsort(-logits, kind="stable")
    if top_k > 0:
        order = order[:top_k]
    reached = np.cumsum(weights[order])
    order = order[: int(np.sum(reached[:-1] < top_p * reached[-1])) + 1]
    order = order[weights[order] >= min_p * weights[order[0]]]
    return int(order[_invert(weights[order], uniform)])


def _invert(weights: Array, uniform: float) -> int:
    """The first index whose share of the running sum exceeds `uniform`, which is in [0, 1)."""
    reached = np.cumsum(weights)
    return int(np.searchsorted(reached / reached[-1], uniform, side="right"))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    nothing, one = (0, 1.0, 0.0), 1.0
    mixed = [
        (0.0, *nothing),
        (one, *nothing),
        (0.7, 5, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (one, 0, 1.0, 0.1),
        (0.9, 20, 0.9, 0.05),
    ]
    for label, vocab_size, parameters in (
        ("greedy", 33, [(0.0, *nothing)] * 3),
        ("no_cut", 33, [(one, *nothing)] * 5),
        ("mixed", 100, mixed * 3),
        ("one_row", 17, [(0.8, 3, 0.95, 0.0)]),
        ("one_token", 1, [(one, *nothing), (one, 1, 0.5, 0.5)]),
        ("top_k_beyond_vocabulary", 7, [(one, 50, 1.0, 0.0)] * 4),
        ("top_k_1", 65, [(one, 1, 1.0, 0.0)] * 3),
        ("top_p_keeps_one", 65, [(one, 0, 1e-6, 0.0)] * 3),
        ("empty", 9, []),
        ("many_rows", 33, mixed * 7),
        ("large_vocabulary", 66_001, mixed),
    ):
        yield Sample(
            label,
            _inputs(normal(rng, len(parameters), vocab_size) * 2, parameters, rng.random(len(parameters))),
        )
    cuts = [(0.0, *nothing), (one, 3, 1.0, 0.0), (one, 0, 0.61, 0.0), (one, *nothing)]
    yield Sample("ties", _inputs(np.zeros((4, 40)), cuts, [0.5, 0.9, 0.7, 0.61]))
    zeros = np.tile([-1.0, -0.0, 0.0, -0.0], (3, 1))
    yield Sample("zeros_of_both_signs", _inputs(zeros, [cuts[0], (one, 1, 1.0, 0.0), (one, 2, 1.0, 0.0)], [0.5] * 3))
    late = np.full((3, 66_001), -4.0)
    late[:, 66_000] = 30.0
    yield Sample("late", _inputs(late, [cuts[0], (one, *nothing), (one, 5, 0.9, 0.0)], [0.5] * 3))
    far = normal(rng, 4, 33) + np.array([[500.0], [-500.0], [500.0], [-500.0]])
    yield Sample("far_from_zero", _inputs(far, [(one, *nothing)] * 2 + [(0.5, 9, 0.9, 0.05)] * 2, [0.3, 0.6, 0.2, 0.8]))
    yield Sample("top_p_reached_exactly", _inputs(np.zeros((1, 4)), [(one, 0, 0.5, 0.0)], [0.75]))
    suppressed = np.where(np.arange(11) % 3 == 1, normal(rng, 4, 11), -np.inf)
    yield Sample(
        "suppressed",
        _inputs(
            suppressed,
            [(one, *nothing), (one, *nothing), (one, 9, 0.9, 0.0), (0.0, *nothing)],
            [0.0, 0.999, 0.3, 0.3],
        ),
    )


def _inputs(
    logits: Array, parameters: list[tuple[float, int, float, float]], uniform: Array | list[float]
) -> tuple[Array, ...]:
    temperature, top_k, top_p, min_p = np.array(parameters, np.float64).reshape(-1, 4).T
    return logits, temperature, top_k.astype(np.int32), top_p, min_p, np.asarray(uniform, np.float64)


SAMPLE_TOKENS = Operator(
    schema=OperatorSchema.parse(
        """sample_tokens(logits: f32[R, V], temperature: f32[R], top_k: i32[R], top_p: f32[R], min_p: f32[R],
        uniform: f32[R]) -> (token_ids: i32[R])"""
    ),
    summary=(
        "Temperature 0 takes the largest logit, the lowest id on ties. Else p = softmax(logits / "
        "temperature); keep the top_k largest (0: all), of these the fewest whose share reaches top_p, of "
        "these the ones with p >= min_p * max(p), and take the first whose running share exceeds uniform: "
        "in descending order, ties by id, or in order of id where nothing cuts."
    ),
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
)
