"""Prompts to measure with."""

from __future__ import annotations

__all__ = ["sample_prompt"]


def sample_prompt(num_tokens: int, vocab_size: int, index: int) -> list[int]:
    """Tokens from all over the vocabulary; those of another `index` begin differently, and so share no prefix."""
    return [(7919 * (index + position) + 13) % vocab_size for position in range(num_tokens)]
