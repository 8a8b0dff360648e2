"""`torch.npu.mstx`: ranges of the profiler."""

from __future__ import annotations

from itertools import count

from torch_npu.streams import Stream

__all__ = ["mstx"]

_numbers = count(1)
_open: set[int] = set()


class mstx:  # noqa: N801  # the real name
    """The functions of the real class that the backend calls."""

    @staticmethod
    def range_start(message: str, stream: Stream | None = None, domain: str = "default") -> int:
        """The real one warns of these, and opens nothing."""
        assert message
        assert isinstance(stream, Stream)
        number = next(_numbers)
        _open.add(number)
        return number

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:
        _open.remove(range_id)
