"""Leaves each row the tokens of a bitmask: what a grammar, or a list of allowed tokens, lets come next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["MASK_TOKENS"]


def _reference(logits: Array, mask: Array) -> Array:
    # Of a little-endian word the first byte has the lowest bits.
    bits = np.unpackbits(np.ascontiguousarray(mask, "<i4").view(np.uint8), axis=1, bitorder="little")
    return np.where(bits[:, : logits.shape[1]] == 1, logits, -np.inf).astype(logits.dtype)


def _check(_: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    vocab_size, num_words = shapes["logits"][1], shapes["mask"][1]
    if num_words * 32 < vocab_size:
        raise OperatorError(f"mask has {num_words} words of 32 tokens, and the logits have {vocab_size} tokens.")


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_rows, vocab_size, extra in (
        (3, 11, 0),
        (1, 32, 0),
        (2, 33, 0),
        (0, 8, 0),
        (5, 257, 1),
        (2, 1, 0),
        (40, 70, 0),
        (2, 66_001, 0),
    ):
        num_words = (vocab_size + 31) // 32 + extra
        mask = rng.integers(-(2**31), 2**31, (num_rows, num_words)).astype(np.int32)
        yield Sample(f"R{num_rows}_V{vocab_size}_W{num_words}", (normal(rng, num_rows, vocab_size), mask))
    mask = np.array([[-1, -1], [0, 0], [-(2**31), 1]], np.int32)
    yield Sample("all_none_two", (normal(rng, 3, 40), mask))


MASK_TOKENS = Operator(
    schema=OperatorSchema.parse("mask_tokens(logits: f32[R, V], mask: i32[R, W]) -> (out: f32[R, V] ~ logits)"),
    summary="Row r becomes -inf at each token t whose bit, bit t % 32 of mask[r, t // 32], is 0.",
    reference=_reference,
    samples=_samples,
    tolerances=EXACT,
    check=_check,
)
