"""The operators in which ranks meet, and the one by which a rank goes on with its own part of what all have. They exist
in the graphs of several ranks only, and most mean something in no rank alone; so they stand beside the catalog, whose
pages one device can be judged by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["ALL_GATHER_LAST", "ALL_REDUCE", "COLLECTIVES", "OWN_HEADS", "with_collectives"]


def _none(_: Any) -> Iterator[Sample]:
    return iter(())


ALL_REDUCE = Operator(
    schema=OperatorSchema.parse("all_reduce(x: F[T, D]) -> (out: F[T, D] ~ x)"),
    summary="The sum of every rank's x, in the order of ranks: the same bits on all of them.",
    samples=_none,
)
ALL_GATHER_LAST = Operator(
    schema=OperatorSchema.parse("all_gather_last(x: F[T, N]; width: int) -> (out: F[T, width])"),
    summary="Every rank's x side by side: rank r has the columns width·r/size to width·(r + 1)/size, rounded down.",
    samples=_none,
)
OWN_HEADS = Operator(
    schema=OperatorSchema.parse("own_heads(x: F[T, H, C]; begin: int, count: int) -> (out: F[T, count, C])"),
    summary="The heads of x from number `begin` on: those that a rank has of what every rank has computed whole.",
    samples=_none,
)
COLLECTIVES = frozenset({ALL_REDUCE.name, ALL_GATHER_LAST.name})


def with_collectives(operators: OperatorRegistry) -> OperatorRegistry:
    """The same operators and these."""
    registry = OperatorRegistry([*operators, ALL_REDUCE, ALL_GATHER_LAST, OWN_HEADS])
    registry.freeze()
    return registry
