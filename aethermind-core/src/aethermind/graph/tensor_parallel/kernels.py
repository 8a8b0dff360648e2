"""Kernels of what only ranks have, for devices in host memory: over a communicator that is there once they have met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aethermind.dispatch.kernel import Kernel
from aethermind.graph.tensor_parallel.operators import ALL_GATHER_LAST, ALL_REDUCE, OWN_HEADS
from aethermind.graph.tensor_parallel.share import Share
from aethermind.hal.dtype import DType
from aethermind.ops.schema import Attribute

__all__ = ["CollectiveKernels", "HostCollectives"]

Array = Any

_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})


class HostCollectives(Protocol):
    """Collectives between processes on arrays in host memory; every rank calls the same ones in the same order."""

    def sum(self, array: Array) -> None:
        """Add up all ranks' arrays, in place, in the order of ranks: float32 sums, rounded once."""

    def gather(self, output: Array, part: Array) -> None:
        """`output[rank]` becomes every rank's `part`; all have the same shape."""


class CollectiveKernels:
    """Kernels of one rank. `connect` has to come before the first run."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._collectives: HostCollectives | None = None

    def connect(self, collectives: HostCollectives) -> None:
        """Say how the other ranks are reached."""
        self._collectives = collectives

    def of(self, device_type: str) -> list[Kernel]:
        """They stand behind a device's own."""
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
