"""Copies between host and device memory, and their statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

__all__ = ["DataTransfer", "TransferStats", "check_copy", "check_fill"]


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Bytes and copies between host and device memory, by direction, since the backend was opened.

    A backend that does not count copies leaves their numbers at 0.
    """

    host_to_device_bytes: int
    device_to_host_bytes: int
    host_to_device_copies: int = 0
    device_to_host_copies: int = 0

    def counting(self, nbytes: int, *, from_device: bool, to_device: bool) -> TransferStats:
        """Return the statistics with one more copy; copies within the host, or within devices, are not counted."""
        if from_device == to_device:
            return self
        uploaded, downloaded = (nbytes, 0) if to_device else (0, nbytes)
        return TransferStats(
            self.host_to_device_bytes + uploaded,
            self.device_to_host_bytes + downloaded,
            self.host_to_device_copies + to_device,
            self.device_to_host_copies + from_device,
        )


class DataTransfer(ABC):
    """Copies contiguous tensors of the same dtype and shape; the direction follows from their buffers.

    Tensors that do not match are an InvalidArgumentError (see `check_copy` and `check_fill`).

    A call without a stream is not ordered with any stream, the default one included. Its caller synchronises the
    streams that use the same memory first; the bytes are in place on return.
    """

    @abstractmethod
    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy, and return when it is done; waits for no stream."""

    @abstractmethod
    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        """Enqueue a copy on `stream`. It holds no references: the caller keeps both tensors alive, and the source
        unchanged, until it has run.
        """

    @abstractmethod
    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        """Set every byte to `byte`, 0 … 255: enqueued on `stream`, or done on return where none is given."""

    @abstractmethod
    def stats(self) -> TransferStats:
        """Return the statistics so far."""


def check_copy(destination: Tensor, source: Tensor) -> None:
    """Raise InvalidArgumentError unless one tensor can be copied to the other byte by byte."""
    if destination.dtype is not source.dtype or destination.shape != source.shape:
        raise InvalidArgumentError(
            f"Cannot copy a {source.dtype} tensor of shape {source.shape} to a {destination.dtype} one "
            f"of shape {destination.shape}: dtype and shape must be the same."
        )
    for tensor in (destination, source):
        _check_contiguous(tensor, "copy")


def check_fill(destination: Tensor, byte: int) -> None:
    """Raise InvalidArgumentError unless a tensor can be filled byte by byte."""
    if not 0 <= byte <= 255:
        raise InvalidArgumentError(f"Cannot fill with {byte}: a byte is 0 to 255.")
    _check_contiguous(destination, "fill")


def _check_contiguous(tensor: Tensor, verb: str) -> None:
    if not tensor.is_contiguous:
        raise InvalidArgumentError(
            f"Cannot {verb} a tensor of shape {tensor.shape} with strides {tensor.strides}: it is not contiguous."
        )
