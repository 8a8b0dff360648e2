"""Logits and tokens that an engine gave, against a reference's for the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aethermind.testing.families.case import Outputs
from aethermind.testing.families.generation import Generated

__all__ = ["assert_close_to", "assert_matches", "random_prompts"]

TIE = 1e-3
"""Where the reference's two best logits are closer than this, either is right."""

TOLERANCE = 1e-5
"""Of float32, as a fraction of the largest logit of a row: the reference computes in float64."""


def random_prompts(*lengths: int, vocab_size: int = 131) -> list[list[int]]:
    """Token ids, the same for the same lengths."""
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def assert_close_to(
    reference: np.ndarray[Any, Any], rows: Sequence[np.ndarray[Any, Any]], tolerance: float = TOLERANCE
) -> None:
    """Every row is the reference's, but for `tolerance` · its largest magnitude."""
    assert len(rows) == len(reference), f"{len(rows)} rows of logits were computed, not {len(reference)}"
    error = np.abs(np.stack(rows) - reference).max(axis=1)
    allowed = tolerance * np.abs(reference).max(axis=1)
    worst = int(np.argmax(error / allowed))
    assert (error <= allowed).all(), (
        f"row {worst} of {len(rows)} is off by {error[worst] / allowed[worst] * tolerance:.2e} of its largest value; "
        f"{tolerance:g} is allowed"
    )


def assert_matches(generated: Generated, outputs: Outputs) -> None:
    """Every row of logits is the reference's for the same tokens, every token its favourite unless two are as good."""
    reference = outputs(generated.all_token_ids[:-1])[len(generated.prompt_token_ids) - 1 :]
    assert_close_to(reference, generated.logits)
    second, first = np.sort(reference, axis=1)[:, -2:].T
    is_decided = first - second > TIE
    tokens = np.array(generated.token_ids)
    assert (reference.argmax(axis=1) == tokens)[is_decided].all(), "a token is not the one with the greatest logit"
    assert is_decided.mean() > 0.9, "nearly all tokens are ties, which proves nothing; choose another configuration"
