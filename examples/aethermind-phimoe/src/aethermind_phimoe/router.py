"""The router of Phi-3.5-MoE as an operator: SparseMixer (Liu et al. 2024, arXiv:2409.12136) in its form for inference.

Shapes: T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aethermind.dispatch import Kernel
from aethermind.hal import DType
from aethermind.ops import Operator, OperatorSchema, Sample, Tolerance

__all__ = ["SPARSE_MIXER", "kernels_for"]

_NUM_CHOSEN = 2


def _reference(logits: Any, *, jitter: float) -> tuple[Any, Any]:
    left = np.array(logits)
    ids = np.empty((len(logits), _NUM_CHOSEN), np.int32)
    weights = np.empty((len(logits), _NUM_CHOSEN), logits.dtype)
    for choice in range(_NUM_CHOSEN):
        best = left.max(axis=1, keepdims=True)
        ids[:, choice] = left.argmax(axis=1)
        is_far = best - left > 2 * jitter * np.maximum(np.abs(logits), best)
        # The weight is the softmax over the near logits, whose largest is the chosen one.
        weights[:, choice] = 1 / np.where(is_far, 0, np.exp(left - best)).sum(axis=1)
        np.put_along_axis(left, ids[:, choice : choice + 1], -np.inf, axis=1)
    return ids, weights


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_experts in ((3, 16), (1, 2), (0, 4), (33, 8), (17, 64)):
        logits = _distinct(rng, num_tokens, num_experts)
        for jitter in (0.01, 0.3):
            yield Sample(f"T{num_tokens}_E{num_experts}_jitter{jitter}", (logits,), {"jitter": jitter})
    yield Sample("below_zero", (_distinct(rng, 9, 8) - 5,), {"jitter": 0.1})
    yield Sample("large", (20 * _distinct(rng, 9, 8),), {"jitter": 0.1})


def _distinct(rng: np.random.Generator, num_tokens: int, num_experts: int) -> Any:
    """Return logits between -2 and 2 that rounding to float32 leaves in the same order."""
    steps = rng.permuted(np.tile(np.arange(num_experts), (num_tokens, 1)), axis=1)
    return 4 * (steps + rng.uniform(0.2, 0.8, steps.shape)) / num_experts - 2


SPARSE_MIXER = Operator(
    schema=OperatorSchema.parse(
        "sparse_mixer(logits: f32[T, E]; jitter: float) -> (ids: i32[T, 2], weights: f32[T, 2])"
    ),
    summary=(
        "ids are the two largest logits of each token. The weight of the first is the softmax over the logits that are "
        "at most 2 · jitter · max(|logit|, best) below it, that of the second the same without the first."
    ),
    reference=_reference,
    samples=_samples,
    tolerances={DType.FLOAT32: Tolerance(relative=1e-6)},
)


def _compute(inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    for output, value in zip(outputs, _reference(inputs[0], jitter=attributes["jitter"]), strict=True):
        output[...] = value


def kernels_for(backend: str) -> list[Kernel]:
    """The kernels of a backend whose memory the host can access."""
    return [
        Kernel(
            "sparse_mixer",
            backend,
            "numpy sparse_mixer",
            frozenset({DType.FLOAT32}),
            function=_compute,
            is_batch_invariant=True,
        )
    ]
