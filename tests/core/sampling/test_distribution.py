"""Sampled tokens follow the distribution that transformers' logits processors define, for each parameter and together.

The seeds are fixed, so a test gives one answer for ever: it fails when the sampler changes, never by chance.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from aethermind.eager import Eager
from aethermind.sampling.random import derive_seed, uniform

NUM_DRAWS = 6000
VOCAB_SIZE = 48
SEEN = (0, 3, 7, 21, 40)
LEAST_P_VALUE = 1e-3
LOGITS = np.random.default_rng(2).normal(0.0, 2.0, VOCAB_SIZE).astype(np.float32)

VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.3, 0.7, 1.0, 1.6, 3.0),
    "top_k": (1, 2, 7, 20, VOCAB_SIZE + 5),
    "top_p": (0.05, 0.5, 0.8, 0.95, 0.999),
    "min_p": (0.001, 0.05, 0.3, 1.0),
    "repetition_penalty": (0.5, 1.2, 2.0),
}
ALONE = [{name: value} for name, values in VALUES.items() for value in values]
TOGETHER = [
    dict(zip(VALUES, values, strict=True))
    for values in product((0.6, 1.5), (0, 12), (1.0, 0.85), (0.0, 0.04), (1.0, 1.3))
]


@pytest.fixture(scope="module")
def eager(device: str) -> Eager:
    return Eager(device=device)


def drawn(
    eager: Eager,
    seed: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> np.ndarray[Any, Any]:
    """How often each token is drawn by as many requests with seeds of their own."""
    logits = np.tile(LOGITS, (NUM_DRAWS, 1))
    tokens = np.tile(np.array(SEEN, np.int32), NUM_DRAWS)
    starts = (np.arange(NUM_DRAWS + 1) * len(SEEN)).astype(np.int32)
    logits = eager.repetition_penalty(logits, tokens, starts, rows(repetition_penalty))
    uniforms = np.array([uniform(derive_seed(seed, draw), draw % 5) for draw in range(NUM_DRAWS)], np.float32)
    token_ids = eager.sample_tokens(
        logits, rows(temperature), rows(top_k, np.int32), rows(top_p), rows(min_p), uniforms
    )
    return np.bincount(token_ids, minlength=VOCAB_SIZE)


def rows(value: float, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.full(NUM_DRAWS, value, dtype)


def expected(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> np.ndarray[Any, Any]:
    """The probability of each token, float64."""
    steps = [hf.RepetitionPenaltyLogitsProcessor(repetition_penalty), hf.TemperatureLogitsWarper(temperature)]
    steps += [hf.TopKLogitsWarper(top_k)] if top_k else []
    steps += [hf.TopPLogitsWarper(top_p)] if top_p < 1 else []
    steps += [hf.MinPLogitsWarper(min_p)] if min_p else []
    scores = torch.tensor(LOGITS).double()[None]
    for step in steps:
        scores = step(torch.tensor([SEEN]), scores)
    return scores.softmax(-1)[0].numpy()


def p_value(counts: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> float:
    """Pearson's chi-square test; tokens expected fewer than five times count as one."""
    means = probabilities * counts.sum()
    is_rare = means < 5
    means = np.append(means[~is_rare], means[is_rare].sum())
    counts = np.append(counts[~is_rare], counts[is_rare].sum())
    means, counts = means[means > 0], counts[means > 0]
    if len(means) == 1:
        return 1.0
    statistic = ((counts - means) ** 2 / means).sum()
    half = torch.tensor([(len(means) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.parametrize("parameters", ALONE + TOGETHER, ids=str)
def test_tokens_come_as_often_as_they_should(eager: Eager, parameters: dict[str, Any]) -> None:
    probabilities = expected(**parameters)
    counts = drawn(eager, 17, **parameters)
    assert not counts[probabilities == 0].any(), "a token that was cut off has been drawn"
    assert p_value(counts, probabilities) > LEAST_P_VALUE


def test_the_test_can_tell_distributions_apart(eager: Eager) -> None:
    counts = drawn(eager, 17, temperature=1.0)
    assert p_value(counts, expected(temperature=1.15)) < LEAST_P_VALUE
