"""Views and copies of a tensor in another shape: operators on heads, and on the last dims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.catalog._index_checks import Shapes
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.operator import EXACT, Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = [
    "CONCAT",
    "CONCAT_LAST",
    "MERGE_HEADS",
    "MERGE_LAST",
    "PERMUTE_HEADS",
    "SELECT",
    "SLICE_LAST",
    "SPLIT_HEADS",
    "SPLIT_LAST",
    "TRANSPOSE",
]


def _split_heads_reference(x: Array, *, num_heads: int) -> Array:
    return x.reshape(x.shape[0], num_heads, x.shape[1] // num_heads)


def _split_heads_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_heads, head_dim in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 1, 7)):
        x = normal(rng, num_tokens, num_heads * head_dim)
        yield Sample(f"T{num_tokens}_H{num_heads}_C{head_dim}", (x,), {"num_heads": num_heads})


SPLIT_HEADS = Operator(
    schema=OperatorSchema.parse("split_heads(x: F[T, Q]; num_heads: int) -> (out: F[T, num_heads, Q/num_heads] = x)"),
    summary="The same memory seen as [tokens, heads, head dim]; nothing runs.",
    reference=_split_heads_reference,
    samples=_split_heads_samples,
    tolerances=EXACT,
)
"""A view: the last dim as heads."""


def _merge_heads_reference(x: Array) -> Array:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])


def _merge_heads_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_heads, head_dim in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 1, 7)):
        yield Sample(f"T{num_tokens}_H{num_heads}_C{head_dim}", (normal(rng, num_tokens, num_heads, head_dim),))


MERGE_HEADS = Operator(
    schema=OperatorSchema.parse("merge_heads(x: F[T, H, C]) -> (out: F[T, H*C] = x)"),
    summary="The same memory seen as [tokens, heads · head dim]; nothing runs.",
    reference=_merge_heads_reference,
    samples=_merge_heads_samples,
    tolerances=EXACT,
)
"""A view: the heads of a token as one vector."""


def _split_last_reference(x: Array, *, count: int) -> Array:
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


def _split_last_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, count in (((3, 16), 2), ((1, 33), 11), ((0, 8), 4), ((12,), 12), ((2, 3, 5), 1)):
        yield Sample(f"{'x'.join(map(str, shape))}_by_{count}", (normal(rng, *shape),), {"count": count})


SPLIT_LAST = Operator(
    schema=OperatorSchema.parse("split_last(x: F[..., D]; count: int) -> (out: F[..., count, D/count] = x)"),
    summary=(
        "The same memory with the last dim seen as [count, D/count]; nothing runs. split_last and merge_last together "
        "express every reshape whose dims are known."
    ),
    reference=_split_last_reference,
    samples=_split_last_samples,
    tolerances=EXACT,
)
"""A view: the last dim as two."""


def _merge_last_reference(x: Array) -> Array:
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _merge_last_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 7), (2, 3, 4, 5)):
        yield Sample("x".join(map(str, shape)), (normal(rng, *shape),))


MERGE_LAST = Operator(
    schema=OperatorSchema.parse("merge_last(x: F[..., A, B]) -> (out: F[..., A*B] = x)"),
    summary="The same memory with the last two dims seen as one; nothing runs.",
    reference=_merge_last_reference,
    samples=_merge_last_samples,
    tolerances=EXACT,
)
"""A view: the last two dims as one."""


def _transpose_reference(x: Array) -> Array:
    return np.swapaxes(x, -2, -1)


def _transpose_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 7), (1, 33), (0, 8), (70, 33), (2, 3, 17), (2, 3, 16, 5), (300, 130), (40, 9, 7)):
        yield Sample("x".join(map(str, shape)), (normal(rng, *shape),))


TRANSPOSE = Operator(
    schema=OperatorSchema.parse("transpose(x: F[..., M, N]) -> (out: F[..., N, M])"),
    summary="A copy in which the last two dims are swapped.",
    reference=_transpose_reference,
    samples=_transpose_samples,
    tolerances=EXACT,
)
"""A copy with the last two dims swapped."""


def _permute_heads_reference(x: Array) -> Array:
    return np.swapaxes(x, -3, -2)


def _permute_heads_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 2, 8), (1, 7, 64), (0, 4, 16), (5, 1, 7), (17, 3, 10), (2, 5, 3, 9), (300, 3, 10), (70, 33, 4)):
        yield Sample("x".join(map(str, shape)), (normal(rng, *shape),))


PERMUTE_HEADS = Operator(
    schema=OperatorSchema.parse("permute_heads(x: F[..., T, H, C]) -> (out: F[..., H, T, C])"),
    summary=(
        "A copy in which the second and third dim from the end are swapped: [tokens, heads, head dim] to [heads, "
        "tokens, head dim] and back. With transpose, split_last and merge_last it expresses every permutation of dims."
    ),
    reference=_permute_heads_reference,
    samples=_permute_heads_samples,
    tolerances=EXACT,
)
"""A copy with tokens and heads swapped, so that the matrix of each head is contiguous."""


def _select_reference(x: Array, *, index: int) -> Array:
    return x[:, index]


def _select_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, index in (((3, 2, 7), 1), ((1, 8, 64), 0), ((0, 4, 8), 3), ((17, 1, 33), 0), ((300, 3, 10), 2)):
        yield Sample(f"{'x'.join(map(str, shape))}_at_{index}", (normal(rng, *shape),), {"index": index})


SELECT = Operator(
    schema=OperatorSchema.parse("select(x: F[T, A, N]; index: int) -> (out: F[T, N])"),
    summary="A copy of x[t, index] for each t; index is from 0 to A - 1.",
    reference=_select_reference,
    samples=_select_samples,
    tolerances=EXACT,
    gathered=frozenset({"x"}),
)
"""A copy of one of the A vectors of every token."""


def _concat_reference(a: Array, b: Array) -> Array:
    return np.concatenate([a, b], axis=1)


def _concat_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_first, num_second, size in (
        (3, 2, 1, 7), (1, 1, 1, 64), (0, 4, 2, 8), (17, 5, 3, 33), (300, 1, 2, 10),
    ):  # fmt: skip
        inputs = normal(rng, num_tokens, num_first, size), normal(rng, num_tokens, num_second, size)
        yield Sample(f"T{num_tokens}_A{num_first}_B{num_second}_N{size}", inputs)


CONCAT = Operator(
    schema=OperatorSchema.parse("concat(a: F[T, A, N], b: F[T, B, N]) -> (out: F[T, A+B, N])"),
    summary="A copy in which the A vectors of each token in a are followed by its B vectors in b.",
    reference=_concat_reference,
    samples=_concat_samples,
    tolerances=EXACT,
)
"""A copy of the vectors of every token in a and b, side by side."""


def _slice_last_reference(x: Array, *, begin: int, size: int) -> Array:
    return x[..., begin : begin + size]


def _slice_last_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, begin, size in (
        ((3, 7), 2, 5),
        ((1, 8, 64), 0, 48),
        ((0, 4, 8), 3, 2),
        ((17, 3, 33), 32, 1),
        ((300, 10), 0, 10),
    ):
        label = f"{'x'.join(map(str, shape))}_from_{begin}_{size}"
        yield Sample(label, (normal(rng, *shape),), {"begin": begin, "size": size})


def _slice_last_check(_: Mapping[str, Array], shapes: Shapes) -> None:
    if shapes["out"][-1] > shapes["x"][-1]:
        raise OperatorError(f"A vector of {shapes['x'][-1]} elements has no slice of {shapes['out'][-1]}.")


SLICE_LAST = Operator(
    schema=OperatorSchema.parse("slice_last(x: F[..., D]; begin: int = 0, size: int) -> (out: F[..., size])"),
    summary="A copy of x[..., begin : begin + size]; begin + size is at most D.",
    reference=_slice_last_reference,
    samples=_slice_last_samples,
    tolerances=EXACT,
    gathered=frozenset({"x"}),
    check=_slice_last_check,
)
"""A copy of adjacent elements of every vector."""


def _concat_last_reference(a: Array, b: Array) -> Array:
    return np.concatenate([a, b], axis=-1)


def _concat_last_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, first, second in (((3,), 2, 5), ((1, 8), 48, 16), ((0, 4), 3, 2), ((17, 3), 32, 1), ((300,), 1, 9)):
        inputs = normal(rng, *shape, first), normal(rng, *shape, second)
        yield Sample(f"{'x'.join(map(str, shape))}_{first}_and_{second}", inputs)


CONCAT_LAST = Operator(
    schema=OperatorSchema.parse("concat_last(a: F[..., A], b: F[..., B]) -> (out: F[..., A+B])"),
    summary="A copy in which every vector of a is followed by the elements of that of b.",
    reference=_concat_last_reference,
    samples=_concat_last_samples,
    tolerances=EXACT,
)
"""A copy in which each vector of a is concatenated with the one of b at the same place."""
