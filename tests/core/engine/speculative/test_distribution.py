"""Checked drafts leave the distribution of answers what it is: a chain of tokens whose probabilities are known.

The seeds are fixed, so a test gives one answer for ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.core.sampling.test_sampling import LEAST_P_VALUE, p_value

from aethermind.eager import Eager
from aethermind.engine.requests.request import Request
from aethermind.engine.steps.batch import DraftRow, count_accepted
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.rows import SamplingRows

NUM_REQUESTS, NUM_TOKENS, VOCAB_SIZE = 4000, 3, 5
LOGITS = np.random.default_rng(5).normal(0.0, 1.2, (VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)
"""Of the token that follows each token."""
NEAR = LOGITS + np.random.default_rng(6).normal(0.0, 0.5, LOGITS.shape).astype(np.float32)
"""What a draft model thinks of it."""


@pytest.fixture(scope="module")
def eager() -> Eager:
    return Eager(device="cpu")


def sample(eager: Eager, logits: np.ndarray[Any, Any], rows: list[Any]) -> list[int]:
    """A token for each row, by the token before it."""
    arrays = {name: np.zeros(len(rows), np.float32) for name in ("temperature", "top_p", "min_p", "uniform")}
    arrays["top_k"] = np.zeros(len(rows), np.int32)
    SamplingRows(arrays).fill(rows)
    given = (arrays[name] for name in ("temperature", "top_k", "top_p", "min_p", "uniform"))
    last = [row.all_token_ids[-1] for row in rows]
    return [int(token) for token in eager.sample_tokens(np.ascontiguousarray(logits[last]), *given)]


def draft(eager: Eager, kind: str, requests: list[Request], count: int) -> None:
    for request in requests:
        request.draft_token_ids = []
    for number in range(count):
        if kind == "model":
            drafts = sample(eager, NEAR, [DraftRow(request, number) for request in requests])
        elif kind == "likeliest":
            last = [DraftRow(request, number).all_token_ids[-1] for request in requests]
            drafts = NEAR.argmax(1)[last].tolist()
        else:
            drafts = [int(kind)] * len(requests)
        for request, token in zip(requests, drafts, strict=True):
            request.draft_token_ids.append(token)


def answers(eager: Eager, kind: str, count: int, **params: Any) -> tuple[np.ndarray[Any, Any], float]:
    """How often each answer of three tokens comes, int [V³], and which share of the drafts was right."""
    requests = [
        Request(str(seed), [0], SamplingParams(seed=seed, **params), 0.0, max_model_len=99)
        for seed in range(NUM_REQUESTS)
    ]
    num_drafts = num_accepted = 0
    while open_requests := [one for one in requests if one.num_output_tokens < NUM_TOKENS]:
        draft(eager, kind, open_requests, count)
        rows = [DraftRow(request, number) for request in open_requests for number in range(count + 1)]
        sampled = sample(eager, LOGITS, rows)
        for index, request in enumerate(open_requests):
            tokens = sampled[index * (count + 1) : (index + 1) * (count + 1)]
            accepted = count_accepted(request.draft_token_ids, tokens)
            num_drafts += count
            num_accepted += accepted
            for token in tokens[: accepted + 1]:
                request.append_token(token)
    codes = [np.ravel_multi_index(one.output_token_ids[:NUM_TOKENS], (VOCAB_SIZE,) * NUM_TOKENS) for one in requests]
    return np.bincount(codes, minlength=VOCAB_SIZE**NUM_TOKENS), num_accepted / max(num_drafts, 1)


def probabilities(temperature: float = 1.0, top_k: int = 0) -> np.ndarray[Any, Any]:
    """Of each answer of three tokens behind token 0, float64 [V³]."""
    scores = LOGITS.astype(np.float64) / temperature
    if top_k:
        scores[scores < np.sort(scores, axis=1)[:, [-top_k]]] = -np.inf
    step = np.exp(scores - scores.max(1, keepdims=True))
    step /= step.sum(1, keepdims=True)
    joint: np.ndarray[Any, Any] = np.einsum("a,ab,bc->abc", step[0], step, step)
    return joint.ravel()


@pytest.mark.parametrize("params", [{}, {"temperature": 0.6}, {"temperature": 1.5, "top_k": 3}], ids=str)
@pytest.mark.parametrize(("kind", "count"), [("model", 2), ("likeliest", 3), ("4", 1)])
def test_answers_follow_the_model_distribution(eager: Eager, kind: str, count: int, params: dict[str, Any]) -> None:
    counts, rate = answers(eager, kind, count, **params)
    assert p_value(counts, probabilities(**params)) > LEAST_P_VALUE
    assert 0.02 < rate < 0.98


def test_the_test_detects_a_biased_verification(eager: Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping one token behind a wrong draft is seen."""
    count = count_accepted

    def keep_more(drafts: list[int], sampled: list[int]) -> int:
        return min(count(drafts, sampled) + 1, len(drafts))

    monkeypatch.setattr(f"{__name__}.count_accepted", keep_more)
    assert p_value(answers(eager, "4", 1)[0], probabilities()) < LEAST_P_VALUE
