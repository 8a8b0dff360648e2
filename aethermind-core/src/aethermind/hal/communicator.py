"""Collectives between the ranks of one model. Optional: a backend without it serves one rank."""

from __future__ import annotations

from typing import Protocol

from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

__all__ = ["Communicator"]


class Communicator(Protocol):
    """Collective operations in stream order; every rank calls them in the same order with the same shapes."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: Tensor, stream: Stream) -> None:
        """Sum `tensor` over all ranks, in place."""

    def all_gather(self, output: Tensor, part: Tensor, stream: Stream) -> None:
        """Join every rank's `part` along the first axis into `output`."""

    def broadcast(self, tensor: Tensor, root: int, stream: Stream) -> None:
        """Copy `tensor` of rank `root` to every rank."""

    def barrier(self) -> None:
        """Return when every rank has called it."""
