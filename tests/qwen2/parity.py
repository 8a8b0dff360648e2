"""Logits and tokens that an engine gave, against those of transformers for the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.qwen2.checkpoints import VOCAB_SIZE, logits_of
from tests.qwen2.generation import Generated

__all__ = ["assert_close_to", "assert_matches", "random_prompts"]

TIE = 1e-3
"""Where the reference's two best logits are closer than this, either is right."""


def random_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, VOCAB_SIZE, length).tolist() for length in lengths]


def assert_close_to(reference: np.ndarray[Any, Any], rows: Sequence[np.ndarray[Any, Any]]) -> None:
    assert len(rows) == len(reference)
    error = np.abs(np.stack(rows) - reference).max(axis=1)
    allowed = 1e-5 * np.abs(reference).max(axis=1)
    assert (error <= allowed).all(), f"error / max|logit| up to {(error / allowed).max() * 1e-5:.2e}"


def assert_matches(generated: Generated, model: Any) -> None:
    """Every row of logits is the reference's for the same tokens, every token its favourite unless two are as good."""
    reference = logits_of(model, generated.all_token_ids[:-1])[len(generated.prompt_token_ids) - 1 :]
    assert_close_to(reference, generated.logits)
    second, first = np.sort(reference, axis=1)[:, -2:].T
    is_decided = first - second > TIE
    assert (reference.argmax(axis=1) == generated.token_ids)[is_decided].all()
    assert is_decided.mean() > 0.9
