"""Moving bytes between host and device memory, and counting them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

__all__ = ["DataTransfer", "TransferStats"]


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Bytes that crossed between host and device memory in each direction since the backend was opened."""

    host_to_device_bytes: int
    device_to_host_bytes: int


class DataTransfer(ABC):
    """Copies between tensors of the same dtype and shape, both contiguous; direction follows from their buffers."""

    @abstractmethod
    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy and return when it is done."""

    @abstractmethod
    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy in the order of `stream`; both tensors must stay alive and unchanged until it has run."""

    @abstractmethod
    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        """Set every byte; in the order of `stream`, or done on return when none is given."""

    @abstractmethod
    def stats(self) -> TransferStats:
        """Bytes moved so far."""
