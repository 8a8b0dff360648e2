"""Operators of tensor parallelism, which graphs of several ranks have, and their kernels in host memory.

They are not in the catalog, whose operators can be tested on a single device: the collectives need several ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from aethermind.dispatch.kernel import Kernel
from aethermind.graph.tensor_parallel.share import Share
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.ops.schema import Attribute, OperatorSchema

__all__ = [
    "ALL_GATHER_LAST",
    "ALL_REDUCE",
    "COLLECTIVES",
    "CollectiveKernels",
    "HostCollectives",
    "OWN_HEADS",
    "with_collectives",
]

Array = Any

_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})


def _no_samples(_: Any) -> Iterator[Sample]:
    return iter(())


ALL_REDUCE = Operator(
    schema=OperatorSchema.parse("all_reduce(x: F[T, D]) -> (out: F[T, D] ~ x)"),
    summary="The sum of every rank's x, in the order of ranks: the same bits on all of them.",
    samples=_no_samples,
)
ALL_GATHER_LAST = Operator(
    schema=OperatorSchema.parse("all_gather_last(x: F[T, N]; width: int) -> (out: F[T, width])"),
    summary="All ranks' x, concatenated: rank r has the columns width·r/size to width·(r + 1)/size, rounded down.",
    samples=_no_samples,
)
OWN_HEADS = Operator(
    schema=OperatorSchema.parse("own_heads(x: F[T, H, C]; begin: int, count: int) -> (out: F[T, count, C])"),
    summary="The heads of x from index `begin` on: a rank's shard of a value that all ranks have computed whole.",
    samples=_no_samples,
)
COLLECTIVES = frozenset({ALL_REDUCE.name, ALL_GATHER_LAST.name})


def with_collectives(operators: OperatorRegistry) -> OperatorRegistry:
    """Return a frozen registry of these operators and those of tensor parallelism."""
    registry = OperatorRegistry([*operators, ALL_REDUCE, ALL_GATHER_LAST, OWN_HEADS])
    registry.freeze()
    return registry


class HostCollectives(Protocol):
    """Collectives between processes on host arrays; every rank calls the same ones in the same order."""

    def sum(self, array: Array) -> None:
        """Replace `array` by the sum of all ranks' arrays, added in the order of ranks in float32 and rounded once."""

    def gather(self, output: Array, part: Array) -> None:
        """Copy every rank's `part` to `output[rank]`; all parts have the same shape."""


class CollectiveKernels:
    """The kernels of one rank for operators of tensor parallelism; call `connect` before the first run.

    They compute in host memory.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._collectives: HostCollectives | None = None

    def connect(self, collectives: HostCollectives) -> None:
        """Set the communicator with the other ranks."""
        self._collectives = collectives

    def of(self, device_type: str) -> list[Kernel]:
        """Return the kernels for a device type. A backend's own kernels have a higher priority."""
        return [
            Kernel(
                operator.name,
                device_type,
                f"host.{operator.name}",
                _DTYPES,
                priority=-1,
                function=function,
                is_batch_invariant=True,
            )
            for operator, function in (
                (ALL_REDUCE, self._reduce),
                (ALL_GATHER_LAST, self._gather_last),
                (OWN_HEADS, _own_heads),
            )
        ]

    @property
    def _connected(self) -> HostCollectives:
        assert self._collectives is not None, "an executor connects the ranks before it runs a step"
        return self._collectives

    def _reduce(self, inputs: Sequence[Array], outputs: Sequence[Array], _: Mapping[str, Attribute]) -> None:
        (x,), (out,) = inputs, outputs
        if out.ctypes.data != x.ctypes.data:
            out[...] = x
        self._connected.sum(out)

    def _gather_last(self, inputs: Sequence[Array], outputs: Sequence[Array], _: Mapping[str, Attribute]) -> None:
        import numpy as np

        (x,), (out,) = inputs, outputs
        share, (num_rows, width) = self._share, out.shape
        part = np.zeros((num_rows, share.longest(width)), x.dtype)
        part[:, : x.shape[1]] = x
        gathered = np.empty((share.size, *part.shape), x.dtype)
        self._connected.gather(gathered, part)
        for rank in range(share.size):
            begin, end = share.bounds(width, rank)
            out[:, begin:end] = gathered[rank, :, : end - begin]


def _own_heads(inputs: Sequence[Array], outputs: Sequence[Array], attributes: Mapping[str, Attribute]) -> None:
    begin, count = attributes["begin"], attributes["count"]
    assert isinstance(begin, int)
    assert isinstance(count, int)
    outputs[0][...] = inputs[0][:, begin : begin + count]
