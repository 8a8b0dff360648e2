"""Arrays that lie in mapped files."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["drop_mapped_pages"]


def drop_mapped_pages(array: np.ndarray[Any, Any]) -> None:
    """Let this process forget the whole pages that an array in a read-only mapped file spans; reading them again works.

    Without it a checkpoint that has been copied to a device would count as this process's memory until it ends. Does
    nothing for other arrays, and where the system has no `madvise`.
    """
    import numpy as np

    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(owner, "madvise"):
        return
    mapped = np.frombuffer(owner, np.uint8)
    if mapped.flags.writeable or not array.size:  # a private copy of a page would be lost
        return
    first = array.ctypes.data - mapped.ctypes.data
    begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    spanned = array.itemsize + sum(
        (length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)
    )
    end = (first + spanned) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        owner.madvise(mmap.MADV_DONTNEED, begin, end - begin)
