"""Sampled tokens follow the distribution that transformers' logits processors define, for each parameter and together.

What transformers has no processor for (presence and frequency penalty, logit bias, masks) is taken from its definition.

The seeds are fixed, so a test gives one answer for ever: it fails when the sampler changes, never by chance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from aethermind.eager import Eager
from aethermind.sampling.logits_constraints import LogitsConstraints, pack_mask
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.rows import PenaltyState, SamplingRows, derive_seed

NUM_DRAWS = 6000
VOCAB_SIZE = 48
SEEN = (0, 3, 7, 21, 40)
OUTPUT = (7, 21, 21, 40, 40, 40)
LEAST_P_VALUE = 1e-3
LOGITS = np.random.default_rng(2).normal(0.0, 2.0, VOCAB_SIZE).astype(np.float32)

VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.3, 0.7, 1.0, 1.6, 3.0),
    "top_k": (1, 2, 7, 20, VOCAB_SIZE + 5),
    "top_p": (0.05, 0.5, 0.8, 0.95, 0.999),
    "min_p": (0.001, 0.05, 0.3, 1.0),
    "repetition_penalty": (0.5, 1.2, 2.0),
    "presence_penalty": (-1.0, 0.7, 2.0),
    "frequency_penalty": (-0.5, 0.3, 1.0),
    "logit_bias": ({3: 2.0, 11: -100.0}, {21: 100.0}),
    "allowed_token_ids": ((3, 7, 11, 47), (0,)),
}
ALONE = [{name: value} for name, values in VALUES.items() for value in values]
TOGETHER = [
    dict(zip(VALUES, values, strict=False))
    for values in product((0.6, 1.5), (0, 12), (1.0, 0.85), (0.0, 0.04), (1.0, 1.3), (0.0, 0.4))
]


@pytest.fixture(scope="module")
def devices() -> dict[str, Eager]:
    """Each on which models must run on any machine, by name."""
    return {name: Eager(device=name) for name in ("numpy", "cpu")}


@dataclass
class Sampled:
    """One of the requests that draw."""

    params: SamplingParams
    seed: int
    constraints: LogitsConstraints | None
    output_token_ids: list[int] = field(default_factory=lambda: list(OUTPUT))
    all_token_ids: list[int] = field(default_factory=lambda: list(SEEN))
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def penalties(self) -> PenaltyState:
        return PenaltyState(self.params).update(self.all_token_ids, self.output_token_ids)


def rows_of(seed: int, params: SamplingParams) -> dict[str, Any]:
    """What SamplingRows writes for as many requests with seeds of their own."""
    allowed = params.allowed_token_ids
    constraints = None if allowed is None else LogitsConstraints(allowed=pack_mask(allowed, VOCAB_SIZE))
    requests = [Sampled(params, derive_seed(seed, draw), constraints) for draw in range(NUM_DRAWS)]
    arrays = row_arrays()
    written = SamplingRows(arrays)
    written.fill(requests)
    num_seen, _, num_biased = written.fill_adjustments(requests)
    if params.is_masked:
        assert written.masks.fill(requests) == {}
    biased = {name: arrays[name][:num_biased] for name in ("biased_tokens", "bias")}
    return {**arrays, **biased, "seen_tokens": arrays["seen_tokens"][:num_seen]}


def drawn(eager: Eager, params: SamplingParams, arrays: dict[str, Any]) -> np.ndarray[Any, Any]:
    """How often a device draws each token."""
    logits = np.tile(LOGITS, (NUM_DRAWS, 1))
    logits = eager.repetition_penalty(logits, arrays["seen_tokens"], arrays["cu_seen"], arrays["penalty"])
    logits = eager.bias_tokens(logits, arrays["biased_tokens"], arrays["cu_biased"], arrays["bias"])
    if params.is_masked:
        logits = eager.mask_tokens(logits, arrays["token_mask"].reshape(NUM_DRAWS, -1))
    token_ids = eager.sample_tokens(
        logits, *(arrays[name] for name in ("temperature", "top_k", "top_p", "min_p", "uniform"))
    )
    return np.bincount(token_ids, minlength=VOCAB_SIZE)


def row_arrays() -> dict[str, Any]:
    """Room for what SamplingRows writes."""
    floats = ("temperature", "top_p", "min_p", "uniform", "penalty")
    arrays: dict[str, Any] = {name: np.zeros(NUM_DRAWS, np.float32) for name in floats}
    arrays["top_k"] = np.zeros(NUM_DRAWS, np.int32)
    arrays["bias"] = np.zeros(NUM_DRAWS * VOCAB_SIZE, np.float32)
    arrays["token_mask"] = np.zeros(NUM_DRAWS * ((VOCAB_SIZE + 31) // 32), np.int32)
    for name in ("seen", "held_back", "biased"):
        arrays[f"{name}_tokens"] = np.zeros(NUM_DRAWS * VOCAB_SIZE, np.int32)
        arrays[f"cu_{name}"] = np.zeros(NUM_DRAWS + 1, np.int32)
    return arrays


def expected(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: dict[int, float] | None = None,
    allowed_token_ids: tuple[int, ...] | None = None,
) -> np.ndarray[Any, Any]:
    """The probability of each token, float64."""
    scores = torch.tensor(LOGITS).double()[None]
    scores = hf.RepetitionPenaltyLogitsProcessor(repetition_penalty)(torch.tensor([SEEN]), scores)
    for token_id in range(VOCAB_SIZE):
        count = OUTPUT.count(token_id)
        scores[0, token_id] -= presence_penalty * (count > 0) + frequency_penalty * count
        scores[0, token_id] += (logit_bias or {}).get(token_id, 0.0)
        if allowed_token_ids is not None and token_id not in allowed_token_ids:
            scores[0, token_id] = -torch.inf
    steps = [hf.TemperatureLogitsWarper(temperature)]
    steps += [hf.TopKLogitsWarper(top_k)] if top_k else []
    steps += [hf.TopPLogitsWarper(top_p)] if top_p < 1 else []
    steps += [hf.MinPLogitsWarper(min_p)] if min_p else []
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
def test_token_frequencies_match_the_reference_distribution(
    devices: dict[str, Eager], parameters: dict[str, Any]
) -> None:
    params = SamplingParams(**parameters)
    probabilities, rows = expected(**parameters), rows_of(17, params)
    for name, eager in devices.items():
        counts = drawn(eager, params, rows)
        assert not counts[probabilities == 0].any(), f"{name} drew a token that was cut off"
        assert p_value(counts, probabilities) > LEAST_P_VALUE, name


def test_the_test_detects_a_different_distribution(devices: dict[str, Eager]) -> None:
    params = SamplingParams(temperature=1.0)
    rows = rows_of(17, params)
    for eager in devices.values():
        assert p_value(drawn(eager, params, rows), expected(temperature=1.15)) < LEAST_P_VALUE
