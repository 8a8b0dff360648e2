"""Routers of mixtures of experts: the score of every expert for every token, and the top k experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import normal, weight
from aethermind.ops.catalog.activations import sigmoid as sigmoid_of
from aethermind.ops.catalog.matrix_products import linear_magnitudes
from aethermind.ops.operator import Array, Call, Cost, Operator, Sample, Tolerance, float32_only
from aethermind.ops.schema import OperatorSchema

__all__ = ["ROUTER_LOGITS", "ROUTER_TOPK"]


def _router_logits_reference(x: Array, w: Array, bias: Array | None) -> Array:
    product = x @ w.T
    return product if bias is None else product + bias


def _router_logits_by_row(x: Array, w: Array, bias: Array | None) -> Array:
    product = (x[:, None] @ w.T)[:, 0]
    return product if bias is None else product + bias


def _router_logits_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_experts, hidden_size in (
        (3, 4, 7),
        (1, 8, 64),
        (0, 4, 8),
        (17, 60, 33),
        (1, 128, 1100),
        (5, 1, 24),
        (133, 8, 40),
        (300, 60, 17),
        (2, 257, 9),
    ):
        x, w = normal(rng, num_tokens, hidden_size), weight(rng, num_experts, hidden_size)
        label = f"T{num_tokens}_E{num_experts}_D{hidden_size}"
        yield Sample(label, (x, w, None))
        yield Sample(f"{label}_bias", (x, w, normal(rng, num_experts)))


def _router_logits_cost(call: Call) -> Cost:
    num_tokens, hidden_size = call.shape("x")
    if not num_tokens:
        return Cost()
    num_experts = call.shape("w")[0]
    return Cost(call.bytes_in("x", "w", "bias"), call.bytes_out("logits"), 2 * num_tokens * hidden_size * num_experts)


ROUTER_LOGITS = Operator(
    schema=OperatorSchema.parse("router_logits(x: F[T, D], w: F[E, D], bias: F[E]?) -> (logits: f32[T, E])"),
    summary="x @ w.T + bias with float32 logits, whatever F is; w is never quantised.",
    reference=_router_logits_reference,
    by_row=_router_logits_by_row,
    samples=_router_logits_samples,
    term_magnitudes=linear_magnitudes,
    # The output is float32 for every F: no rounding to F is allowed, because the choice compares close scores.
    tolerances=dict.fromkeys((DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16), Tolerance(relative_to_terms=1e-5)),
    cost=_router_logits_cost,
)
"""The scores of experts before softmax or sigmoid, one for each token and expert."""


def _router_topk_reference(
    logits: Array,
    correction: Array | None,
    *,
    k: int,
    sigmoid: bool,
    renormalize: bool,
    num_groups: int,
    top_groups: int,
    group_score_k: int,
    scale: float,
) -> tuple[Array, Array]:
    scores = sigmoid_of(logits) if sigmoid else _softmax(logits)
    corrected = scores if correction is None else scores + correction
    if top_groups < num_groups:
        corrected = np.where(_in_best_groups(corrected, num_groups, top_groups, group_score_k), corrected, -np.inf)
    ids = np.argsort(-corrected, axis=1, kind="stable")[:, :k]
    weights = np.take_along_axis(scores, ids, axis=1)
    if renormalize:
        weights = weights / (weights.sum(axis=1, keepdims=True) + _NO_DIVISION_BY_ZERO)
    return ids.astype(np.int32), weights * scale


_NO_DIVISION_BY_ZERO = 1e-20


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _in_best_groups(scores: Array, num_groups: int, top_groups: int, group_score_k: int) -> Array:
    """Return whether each expert (bool [T, E]) belongs to one of the best groups of its token, by scores [T, E]."""
    num_tokens, num_experts = scores.shape
    groups = scores.reshape(num_tokens, num_groups, num_experts // num_groups)
    group_scores = -np.sort(-groups, axis=2)[:, :, :group_score_k].sum(axis=2)
    best = np.argsort(-group_scores, axis=1, kind="stable")[:, :top_groups]
    is_best = np.zeros((num_tokens, num_groups), bool)
    np.put_along_axis(is_best, best, values=True, axis=1)
    return is_best.repeat(num_experts // num_groups, axis=1)


_SMALLEST_GAP = 1e-4
"""The least difference of scores in samples, so that rounding to float32 does not change their order."""


def _router_topk_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_experts, k in (
        (3, 4, 2),
        (1, 8, 2),
        (0, 4, 1),
        (5, 1, 1),
        (17, 8, 8),
        (35, 60, 4),
        (133, 8, 1),
    ):
        logits = _separate_scores(rng, num_tokens, num_experts)
        label = f"T{num_tokens}_E{num_experts}_k{k}"
        yield Sample(label, (logits, None), {"k": k})
        yield Sample(f"{label}_renormalize", (logits, None), {"k": k, "renormalize": True})
        yield Sample(f"{label}_sigmoid", (logits, None), {"k": k, "sigmoid": True, "renormalize": True, "scale": 2.5})
    yield Sample("one_token_of_many_experts", (_separate_scores(rng, 1, 128), None), {"k": 8, "renormalize": True})
    yield Sample("many_experts", (_separate_scores(rng, 9, 512), None), {"k": 10})
    correction = rng.permutation(16) / 8 - 1
    grouped: dict[str, Any] = {"k": 4, "sigmoid": True, "renormalize": True, "num_groups": 4, "top_groups": 2}
    logits = _separate_scores(rng, 33, 16)
    yield Sample("correction", (logits, correction), {"k": 3, "sigmoid": True, "renormalize": True})
    yield Sample("groups_of_best_expert", (logits, None), grouped)
    softmax_groups = {"k": 6, "num_groups": 8, "top_groups": 3, "scale": 16.0}
    yield Sample("groups_softmax", (logits, None), softmax_groups)
    yield Sample("groups_of_best_two", (_separate_groups(rng, 40), None), {**grouped, "group_score_k": 2})
    yield Sample("ties", (np.zeros((3, 9)), None), {"k": 4, "renormalize": True})
    levels = rng.integers(0, 3, (20, 33)).astype(np.float64)
    yield Sample("many_ties", (levels, None), {"k": 8})
    yield Sample("tied_groups", (np.zeros((2, 16)), None), {**grouped, "group_score_k": 2})
    zeros = np.tile([-0.0, 0.0, -1.0, 0.0], (2, 1))
    yield Sample("zeros_of_both_signs", (zeros, None), {"k": 3})
    far = _separate_scores(rng, 4, 8) + np.array([[500.0], [-500.0], [80.0], [-80.0]])
    yield Sample("far_from_zero", (far, None), {"k": 2, "renormalize": True})


def _separate_scores(rng: np.random.Generator, num_tokens: int, num_experts: int) -> Array:
    """Return logits [T, E] between -2 and 2 in random order, whose differences are large enough to be exact."""
    steps = (rng.permuted(np.tile(np.arange(num_experts), (num_tokens, 1)), axis=1) + 0.5) / num_experts
    return (steps - 0.5 + rng.uniform(-0.2, 0.2, steps.shape) / num_experts) * 4


def _separate_groups(rng: np.random.Generator, num_tokens: int) -> Array:
    """Return logits [T, 16] as `_separate_scores`; the scores of four groups, sums of two sigmoids, differ as well."""
    rows: list[Array] = []
    while len(rows) < num_tokens:
        (row,) = _separate_scores(rng, 1, 16)
        sums = np.sort(np.sort(sigmoid_of(row).reshape(4, 4), axis=1)[:, 2:].sum(axis=1))
        if np.diff(sums).min() > _SMALLEST_GAP:
            rows.append(row)
    return np.stack(rows)


ROUTER_TOPK = Operator(
    schema=OperatorSchema.parse(
        """router_topk(logits: f32[T, E], correction: f32[E]?; k: int, sigmoid: bool = False,
        renormalize: bool = False, num_groups: int = 1, top_groups: int = 1, group_score_k: int = 1,
        scale: float = 1.0) -> (ids: i32[T, k], weights: f32[T, k])"""
    ),
    summary=(
        "Scores are the softmax or the sigmoid of the logits. ids are the k experts of largest score + correction, in "
        "descending order, ties by id. With top_groups < num_groups, experts are in num_groups equal groups of "
        "neighbours, a group's score is the sum of its group_score_k largest, and ids are from the top_groups groups "
        "of largest score. weights are the experts' scores without the correction, divided by their sum if "
        "renormalize is set, times scale."
    ),
    reference=_router_topk_reference,
    samples=_router_topk_samples,
    tolerances=float32_only(),
)
"""The experts of each token and their weights.

With softmax and `renormalize` the weights equal the softmax over the chosen logits alone (Mixtral: Jiang et al. 2024,
arXiv:2401.04088). Groups and the correction, which balances load and affects the choice only, are those of DeepSeek V3
(DeepSeek-AI 2024, arXiv:2412.19437).
"""
