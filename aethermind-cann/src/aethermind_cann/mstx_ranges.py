"""Named ranges of mstx, the annotation API of MindStudio's profilers (msprof), through torch_npu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from aethermind.hal.stream import Stream
from aethermind_cann.streams import CannStream

__all__ = ["mstx_range"]


@contextmanager
def mstx_range(name: str, stream: Stream) -> Iterator[None]:
    """Open a range of this name on the host and for the work that is submitted to the stream inside of it."""
    assert isinstance(stream, CannStream), "the stream is of another backend"
    opened = torch.npu.mstx.range_start(name, stream.handle)
    try:
        yield
    finally:
        torch.npu.mstx.range_end(opened)
