"""PyTorch's general changes of shape, by lists of sizes and dims: reshape, permute and expand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.dims import resolve
from aethermind.ops.operator import EXACT, Array, Operator, Sample
from aethermind.ops.schema import OpBuilder, OperatorSchema
from aethermind.ops.shape_inference import expand, known_sizes, positive_dims, reshape

__all__ = ["EXPAND", "PERMUTE", "RESHAPE"]


def _label(shape: Sequence[int], preposition: str, argument: Sequence[int]) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'}_{preposition}_{'_'.join(map(str, argument)) or 'none'}"


def _reshape_reference(x: Array, *, shape: Sequence[int]) -> Array:
    return x.reshape(reshape(x.shape, shape))


def _reshape_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for input_shape, shape in (
        ((3, 16), (6, -1)),
        ((2, 3, 4), (4, 3, 2)),
        ((1, 33), (33,)),
        ((0, 8), (2, 0, 4)),
        ((7,), (-1, 1, 7, 1)),
        ((1, 1), ()),
        ((), (1, -1)),
    ):
        yield Sample(_label(input_shape, "to", shape), (normal(rng, *input_shape),), {"shape": shape})


RESHAPE = Operator(
    schema=OperatorSchema.parse("reshape(x: F[...]; shape: ints) -> (out: F[reshape(...)] = x)"),
    summary="The same memory in another shape of as many elements; one size may be -1, and nothing runs.",
    reference=_reshape_reference,
    samples=_reshape_samples,
    tolerances=EXACT,
)
"""A view: the same elements in another shape."""


def _permute_reference(x: Array, *, dims: Sequence[int]) -> Array:
    return np.transpose(x, dims)


def _permute_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, dims in (
        ((3, 7), (1, 0)),
        ((5, 2, 80), (1, 0, 2)),
        ((70, 33, 4), (1, 2, 0)),
        ((2, 3, 17), (2, 1, 0)),
        ((40, 9, 7), (0, -1, 1)),
        ((2, 3, 4, 5), (3, 1, 2, 0)),
        ((2, 35, 3, 40), (0, 3, 2, 1)),
        ((2, 3, 2, 3, 2, 3), (4, 0, 5, 2, 1, 3)),
        ((300, 130), (1, 0)),
        ((4, 1, 33), (1, 0, 2)),
        ((5, 6), (0, 1)),
        ((0, 4, 16), (2, 0, 1)),
        ((1, 6, 5), (2, 0, 1)),
        ((33_001,), (0,)),
        ((), ()),
    ):
        yield Sample(_label(shape, "by", dims), (normal(rng, *shape),), {"dims": dims})


def _copy(builder: OpBuilder[Any], x: Any) -> Any:
    """Copy x by `slice_last` with the full size, because the simple operators have no plain copy."""
    flat = builder.op("reshape", x, shape=(*known_sizes(tuple(x.shape)), 1))
    return builder.op("reshape", builder.op("slice_last", flat, size=1), shape=known_sizes(tuple(x.shape)))


def _swap_neighbours(builder: OpBuilder[Any], x: Any, index: int) -> Any:
    """Swap the dims `index` and `index + 1`. The dims after these are merged to one, and split again afterwards."""
    last = tuple(x.shape)[index + 2 :]
    if not last:
        return builder.op("transpose", x)
    for _ in last[1:]:
        x = builder.op("merge_last", x)
    x = builder.op("permute_heads", x)
    for count in last[:-1]:
        x = builder.op("split_last", x, count=count)
    return x


def _permute_decompose(builder: OpBuilder[Any], x: Any, *, dims: Sequence[int]) -> Any:
    """Move one dim after another to its place, by swaps of neighbours."""
    current = list(range(len(x.shape)))
    target = positive_dims(dims, len(current))
    if list(target) == current:
        return _copy(builder, x)
    for place, dim in enumerate(target):
        for index in range(current.index(dim), place, -1):
            x = _swap_neighbours(builder, x, index - 1)
            current[index - 1], current[index] = current[index], current[index - 1]
    return x


PERMUTE = Operator(
    schema=OperatorSchema.parse("permute(x: F[...]; dims: ints) -> (out: F[permute(...)])"),
    summary="A copy whose dims are in the order of a list, which has each of them once.",
    reference=_permute_reference,
    samples=_permute_samples,
    decompose=_permute_decompose,
    tolerances=EXACT,
)
"""A copy with the dims in any order."""


def _expand_reference(x: Array, *, shape: Sequence[int]) -> Array:
    return np.broadcast_to(x, resolve(expand(x.shape, shape), {}))


def _expand_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for input_shape, shape in (
        ((7,), (3, 7)),
        ((3, 1), (3, 33)),
        ((1, 5), (300, -1)),
        ((2, 1, 17), (-1, 5, -1)),
        ((4, 1, 3, 1), (4, 6, 3, 20)),
        ((1, 2, 1, 3, 1, 5), (3, 2, 2, 3, 2, 5)),
        ((), (2, 9)),
        ((1,), (33_001,)),
        ((1, 8), (0, 8)),
        ((0, 1), (0, 4)),
        ((3, 16), (3, 16)),
    ):
        yield Sample(_label(input_shape, "to", shape), (normal(rng, *input_shape),), {"shape": shape})


def _repeat(builder: OpBuilder[Any], x: Any, count: int) -> Any:
    """Return `count` copies of x [T, 1, N] as [T, count, N], by doubling."""
    if count == 1:
        return x
    half = _repeat(builder, x, count // 2)
    doubled = builder.op("concat", half, half)
    return builder.op("concat", doubled, x) if count % 2 else doubled


def _expand_decompose(builder: OpBuilder[Any], x: Any, *, shape: Sequence[int]) -> Any:
    """Repeat one dim of 1 after another."""
    target = expand(tuple(x.shape), shape)
    sizes = [1] * (len(target) - len(x.shape)) + list(known_sizes(tuple(x.shape)))
    repeated = [position for position, dim in enumerate(target) if sizes[position] == 1 and dim != 1]
    if not repeated:
        return builder.op("reshape", _copy(builder, x), shape=sizes)
    for position in repeated:
        count = target[position]
        assert isinstance(count, int), "`shape` has no symbolic dims"
        before, after = sizes[:position], sizes[position + 1 :]
        x = builder.op("reshape", x, shape=(_product(before), 1, _product(after)))
        x = builder.op("slice_last", x, size=0) if count == 0 else _repeat(builder, x, count)
        sizes = [*before, count, *after]
        x = builder.op("reshape", x, shape=sizes)
    return x


def _product(sizes: Sequence[int]) -> int:
    """Return the product of sizes; -1 if one of them is -1, which stands for a size that is known at run time."""
    return -1 if -1 in sizes else prod(sizes)


EXPAND = Operator(
    schema=OperatorSchema.parse("expand(x: F[...]; shape: ints) -> (out: F[expand(...)])"),
    summary="A copy in which dims of 1 are repeated, and new ones added in front; -1 keeps a dim (torch.expand_copy).",
    reference=_expand_reference,
    samples=_expand_samples,
    decompose=_expand_decompose,
    tolerances=EXACT,
)
"""A copy with dims of 1 repeated."""
