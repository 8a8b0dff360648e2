"""Moving bytes between host and device memory, and counting them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

__all__ = ["DataTransfer", "TransferStats", "check_copy", "check_fill"]


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Bytes that crossed between host and device memory in each direction since the backend was opened, and copies.

    A backend that does not count copies leaves their numbers at 0.
    """

    host_to_device_bytes: int
    device_to_host_bytes: int
    host_to_device_copies: int = 0
    device_to_host_copies: int = 0

    def counting(self, nbytes: int, *, from_device: bool, to_device: bool) -> TransferStats:
        """These with one more copy, where it crosses."""
        if from_device == to_device:
            return self
        up, down = (nbytes, 0) if to_device else (0, nbytes)
        return TransferStats(
            self.host_to_device_bytes + up,
            self.device_to_host_bytes + down,
            self.host_to_device_copies + to_device,
            self.device_to_host_copies + from_device,
        )


class DataTransfer(ABC):
    """Copies between contiguous tensors of the same dtype and shape; the direction follows from their buffers.

    What does not fit is an InvalidArgumentError (see `check_copy` and `check_fill`).

    A call without a stream is in step with no stream, the default one included: it may run while they work. Its caller
    waits for those that use the same memory first, and finds the bytes there on return.
    """

    @abstractmethod
    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy and return when it is done; waits for no stream."""

    @abstractmethod
    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy in the order of `stream`; both tensors must stay alive, and the source unchanged, until it has run.

        That is the caller's duty: a copy keeps neither of them.
        """

    @abstractmethod
    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        """Set every byte to 0 … 255; in the order of `stream`, or done on return when none is given."""

    @abstractmethod
    def stats(self) -> TransferStats:
        """Bytes moved so far."""


def check_copy(destination: Tensor, source: Tensor) -> None:
    """Raise InvalidArgumentError unless one tensor can be copied onto the other byte by byte."""
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
