"""What holds for the sampling operators whatever the logits are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale import scaled

from aethermind.dispatch.reference import ReferenceRunner
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry

RUNNER = ReferenceRunner(OperatorRegistry(catalog.load()))

GRID = 512
"""In how many steps uniform runs through [0, 1): a share is exact to one of them."""

# Distributions need many rows an example, so there are fewer examples, and a busy machine may take its time.
distribution = settings(max_examples=scaled(4000), deadline=None)
unhurried = settings(deadline=None)

levels = st.integers(-8, 8).map(lambda level: level / 2)
"""Few values, so that ties are common."""
logit_rows = st.lists(levels, min_size=1, max_size=12)
uniforms = st.floats(0, 1, exclude_max=True, width=32)


def sample(
    logits: list[float],
    uniform: Any,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Any:
    uniform = np.atleast_1d(np.asarray(uniform, np.float32))
    rows = len(uniform)
    floats = [np.full(rows, value, np.float32) for value in (temperature, top_p, min_p)]
    return RUNNER.op(
        "sample_tokens",
        np.tile(np.array(logits, np.float32), (rows, 1)),
        floats[0],
        np.full(rows, top_k, np.int32),
        floats[1],
        floats[2],
        uniform,
    )


def shares(logits: list[float], **cuts: Any) -> Any:
    """How often each token comes when uniform runs evenly through [0, 1)."""
    grid = (np.arange(GRID) + 0.5) / GRID
    return np.bincount(sample(logits, grid, **cuts), minlength=len(logits)) / len(grid)


@unhurried
@given(logit_rows, uniforms)
def test_temperature_zero_takes_the_first_of_the_largest(logits: list[float], uniform: float) -> None:
    assert sample(logits, uniform, temperature=0.0, top_k=2, top_p=0.5).tolist() == [int(np.argmax(logits))]


@distribution
@given(logit_rows, st.sampled_from([0.5, 1.0, 2.0]))
def test_without_cuts_tokens_come_as_softmax_says(logits: list[float], temperature: float) -> None:
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, dim=0).numpy()
    np.testing.assert_allclose(shares(logits, temperature=temperature), expected, atol=1 / GRID)


@distribution
@given(logit_rows, st.integers(1, 15))
def test_top_k_keeps_the_k_largest_lower_ids_first(logits: list[float], top_k: int) -> None:
    kept = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:top_k]
    weights = np.zeros(len(logits))
    weights[kept] = np.exp(np.array(logits)[kept])
    np.testing.assert_allclose(shares(logits, top_k=top_k), weights / weights.sum(), atol=1 / GRID)


@distribution
@given(logit_rows, st.floats(0.0625, 0.9375, width=32))
def test_top_p_keeps_the_fewest_that_reach_it(logits: list[float], top_p: float) -> None:
    probabilities = torch.softmax(torch.tensor(logits, dtype=torch.float64), dim=0)
    kept = np.flatnonzero(shares(logits, top_p=top_p) > 0)
    visible = probabilities[kept]
    assert float(visible.sum()) >= top_p - len(logits) / GRID
    assert len(kept) == 1 or float(visible.sum() - visible.min()) < top_p + 1e-9
    others = np.delete(probabilities.numpy(), kept)
    assert not len(others) or others.max() <= max(float(visible.min()), 1 / GRID)


@distribution
@given(logit_rows, st.sampled_from([0.1, 0.3, 0.7, 1.0]))
def test_min_p_keeps_all_that_are_near_the_largest(logits: list[float], min_p: float) -> None:
    probabilities = torch.softmax(torch.tensor(logits, dtype=torch.float64), dim=0)
    weights = torch.where(probabilities >= np.float32(min_p) * probabilities.max(), probabilities, 0)
    np.testing.assert_allclose(shares(logits, min_p=min_p), (weights / weights.sum()).numpy(), atol=1 / GRID)


@unhurried
@given(logit_rows, uniforms, st.integers(0, 5), st.sampled_from([0.3, 0.9, 1.0]), st.sampled_from([0.0, 0.2]))
def test_rows_of_a_batch_do_not_see_each_other(
    logits: list[float], uniform: float, top_k: int, top_p: float, min_p: float
) -> None:
    cuts: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    together = sample(logits, [0.1, uniform, 0.9], **cuts)
    alone = [int(sample(logits, one, **cuts)[0]) for one in (0.1, uniform, 0.9)]
    assert together.tolist() == alone


@unhurried
@given(logit_rows, uniforms)
def test_a_suppressed_token_never_comes(logits: list[float], uniform: float) -> None:
    if len(logits) == 1:
        logits = [*logits, 0.0]
    row, tokens = np.array([logits], np.float32), np.array([int(np.argmax(logits))], np.int32)
    suppressed = RUNNER.op("suppress_tokens", row, tokens, np.array([0, 1], np.int32))
    assert np.isneginf(suppressed[0, tokens[0]])
    assert np.isfinite(np.delete(suppressed[0], tokens)).all()
    for cuts in ({}, {"top_k": 3}, {"top_p": 0.9}):
        assert sample(suppressed[0].tolist(), uniform, **cuts)[0] != tokens[0]


@unhurried
@given(logit_rows, st.sampled_from([1.0, 1.5, 4.0]))
def test_a_penalty_only_lowers_and_only_the_named(logits: list[float], penalty: float) -> None:
    row, tokens = np.array([logits], np.float32), np.arange(0, len(logits), 2, dtype=np.int32)
    cu_tokens = np.array([0, len(tokens)], np.int32)
    out = RUNNER.op("repetition_penalty", row, tokens, cu_tokens, np.array([penalty], np.float32))
    assert (out <= row).all()
    np.testing.assert_array_equal(out[0, 1::2], row[0, 1::2])
    assert np.array_equal(out, row) == (penalty == 1.0 or not row[0, tokens].any())


@unhurried
@given(logit_rows, st.integers(1, 15))
def test_logprobs_rank_and_order_agree(logits: list[float], k: int) -> None:
    size = len(logits)
    rows, every_token = np.tile(np.array(logits, np.float32), (size, 1)), np.arange(size, dtype=np.int32)
    logprob, rank, top_ids, top_logprobs = RUNNER.op("token_logprobs", rows, every_token, k=k)
    np.testing.assert_allclose(np.exp(logprob.astype(np.float64)).sum(), 1, rtol=1e-5)
    found = min(k, size)
    np.testing.assert_array_equal(top_logprobs[0, :found], logprob[top_ids[0, :found]])
    assert (np.diff(top_logprobs[0, :found]) <= 0).all()
    assert (np.diff(rank[top_ids[0, :found]]) >= 0).all()
    assert rank.min() == 1
    assert (top_ids[:, found:] == -1).all()
    assert np.isneginf(top_logprobs[:, found:]).all()
