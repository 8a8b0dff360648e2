"""Pages of memory-mapped files: dropping and prefetching them, and huge pages."""

from __future__ import annotations

import ctypes
import mmap
import threading
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["drop_mapped_pages", "maps_huge_pages", "prefetch_mapped_pages"]

_SMAPS = Path("/proc/self/smaps")
_MADV_POPULATE_READ = 22
"""An advice of Linux 5.14 that Python's mmap module lacks. Older kernels refuse it; pages are then read when touched.
"""
_BYTES_PER_CALL = 32 << 20
"""Bytes that one call populates. The kernel blocks other mappings of the process during a call, so calls are short."""


def drop_mapped_pages(array: np.ndarray[Any, Any]) -> None:
    """Release the pages that an array in a read-only mapped file spans; they are read again when accessed.

    Otherwise the pages of a checkpoint that was copied to a device would remain in this process's memory. Does nothing
    for other arrays, and on systems without `madvise`.
    """
    import numpy as np

    owner = _mmap_of(array)
    if owner is None or not hasattr(owner, "madvise"):
        return
    mapped = np.frombuffer(owner, np.uint8)
    if mapped.flags.writeable or not array.size:  # private copies of pages would be lost
        return
    first = array.ctypes.data - mapped.ctypes.data
    begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    spanned = array.itemsize + sum(
        (length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)
    )
    end = (first + spanned) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        owner.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def maps_huge_pages(path: Path) -> bool:
    """Whether the system maps a file by huge pages, found by touching one in its middle.

    This needs a file of at least 4 MiB, and a file system and kernel with huge pages in the page cache. OSError if the
    file cannot be opened.
    """
    import numpy as np

    if not hasattr(mmap, "MADV_HUGEPAGE") or not _SMAPS.exists():
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as owner:
        address = np.frombuffer(owner, np.uint8).ctypes.data
        middle = address + len(owner) // 2
        owner.madvise(mmap.MADV_HUGEPAGE)
        _madvise(middle - middle % mmap.PAGESIZE, mmap.PAGESIZE, _MADV_POPULATE_READ)
        with open(_SMAPS, encoding="ascii", errors="replace") as lines:
            rest = dropwhile(lambda line: not line.startswith(f"{address:x}-"), lines)
            count = next((line for line in rest if line.startswith("FilePmdMapped:")), "FilePmdMapped: 0 kB")
    return int(count.split()[1]) > 0


def prefetch_mapped_pages(array: np.ndarray[Any, Any]) -> None:
    """Prefetch the whole mapped file that an array is in, on huge pages where the system has them.

    A thread does this; the call returns at once. Does nothing for other arrays, and where the system does not support
    it.
    """
    import numpy as np

    owner = _mmap_of(array)
    if owner is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    mapped = np.frombuffer(owner, np.uint8)
    begin, nbytes = mapped.ctypes.data, mapped.nbytes

    def prefetch() -> None:
        for offset in range(0, mapped.nbytes, _BYTES_PER_CALL):  # `mapped` keeps the file mapped until the end
            if not _madvise(begin + offset, min(_BYTES_PER_CALL, nbytes - offset), _MADV_POPULATE_READ):
                return

    owner.madvise(mmap.MADV_HUGEPAGE)
    threading.Thread(target=prefetch, name="aethermind-prefetch", daemon=True).start()


def _madvise(address: int, nbytes: int, advice: int) -> bool:
    """Call madvise without the GIL, which `mmap.madvise` holds while it waits for the disk; True on success."""
    return int(ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), advice)) == 0


def _mmap_of(array: np.ndarray[Any, Any]) -> mmap.mmap | None:
    import numpy as np

    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, mmap.mmap) else None
