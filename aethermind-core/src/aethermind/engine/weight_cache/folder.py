"""A folder of packed weights, a safetensors file for each set of them, which several processes may use at once.

A tensor of the file holds the bytes of a constant, filled up to whole cache lines. The header is filled up to a page:
then every constant begins at a cache line wherever the file is mapped.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.errors import CheckpointError
from aethermind.hal.allocator import ALIGNMENT
from aethermind.hal.layout import align_up
from aethermind.hal.mapped import maps_huge_pages
from aethermind.kept_files import UNFINISHED, by_use, write_whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["WeightFolder"]

_SUFFIX = ".safetensors"
_PAGE_BYTES = 4096
_PIECE_BYTES = 2 << 20
"""What is written at a time, at multiples of it: that is how Linux comes to keep it in huge pages. Of larger pieces it
makes larger pages, which it then maps as small ones.
"""


class WeightFolder:
    """Up to `max_bytes` of files, the least recently used given up first.

    Who has mapped a file that is given up keeps what it mapped.
    """

    needs_huge_pages = True
    """On small ones a decode step takes a tenth longer, and a server would pay that for as long as it runs."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes

    def has(self, key: str) -> bool:
        """Whether somebody wrote it."""
        return self._place(key).exists()

    def find(self, key: str, sizes: Mapping[str, int]) -> dict[str, Bytes]:
        """Constants of these sizes in bytes, each an array on the mapped file; none where there is no such file, or
        the system maps it by small pages.

        CheckpointError where there is one and it is not what was written; it is deleted.
        """
        place = self._place(key)
        try:
            is_large = place.stat().st_size > 2 * _PIECE_BYTES
            if self.needs_huge_pages and is_large and not maps_huge_pages(place):
                return {}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        try:
            found = _read(place, key, sizes)
        except CheckpointError:
            if not place.exists():  # another process gave it up just now
                return {}
            with suppress(OSError):
                place.unlink()
            raise
        with suppress(OSError):
            os.utime(place)
        return found

    def write(
        self,
        key: str,
        constants: Mapping[str, Bytes],
        is_over: Callable[[], bool] = lambda: False,
        *,
        model: str = "",
    ) -> bool:
        """Write a file that notes the path of its model; False where `is_over` said so before it was done, where it
        would be larger than the folder may be, and where it would be mapped by small pages.

        OSError where that is impossible. Either way nothing is left behind.
        """
        nbytes = sum(align_up(one.nbytes, ALIGNMENT) for one in constants.values())
        if nbytes > self.max_bytes:
            return False
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.needs_huge_pages and not self._has_huge_pages():
            return False
        self._make_room(nbytes)
        if shutil.disk_usage(self.path).free < 2 * nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_whole(self._place(key), _pieces(_contents(key, constants, model)), is_over)

    def _place(self, key: str) -> Path:
        return self.path / (key + _SUFFIX)

    def _has_huge_pages(self) -> bool:
        """Whether files that are mapped from here come on huge pages, tried with a small one."""
        with tempfile.NamedTemporaryFile(dir=self.path, suffix=UNFINISHED, buffering=0) as file:
            for _ in range(4):
                file.write(bytes(_PIECE_BYTES))
            return maps_huge_pages(Path(file.name))

    def _make_room(self, nbytes: int) -> None:
        """Give up what was used least recently until so much more fits."""
        files = by_use(self.path, _SUFFIX)
        total = sum(size for _, size in files)
        for path, size in files:
            if total + nbytes <= self.max_bytes:
                break
            with suppress(OSError):
                path.unlink()
                total -= size


def _read(place: Path, key: str, sizes: Mapping[str, int]) -> dict[str, Bytes]:
    file = SafetensorsFile(place)
    found = {}
    for name, nbytes in sizes.items():
        info = file.info(name)
        array = file.array(name)[:nbytes]
        if info.dtype_name != "U8" or array.shape != (nbytes,) or array.ctypes.data % ALIGNMENT:
            raise CheckpointError(f"{place} has {info.num_bytes} bytes of {name}, and {nbytes} are wanted.")
        found[name] = array
    if file.metadata.get("key") != key:
        raise CheckpointError(f"{place} holds other weights than its name says.")
    return found


def _contents(key: str, constants: Mapping[str, Bytes], model: str) -> Iterator[Any]:
    """The parts of a file one after the other."""
    header: dict[str, Any] = {"__metadata__": {"key": key, **({"model": model} if model else {})}}
    end = 0
    for name, constant in constants.items():
        begin, end = end, end + align_up(constant.nbytes, ALIGNMENT)
        header[name] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text = text.ljust(align_up(8 + len(text), _PAGE_BYTES) - 8)
    yield len(text).to_bytes(8, "little") + text
    for constant in constants.values():
        yield constant.data
        yield bytes(align_up(constant.nbytes, ALIGNMENT) - constant.nbytes)


def _pieces(parts: Iterator[Any]) -> Iterator[memoryview]:
    """The same in pieces of one size, the last of what is left; each is overwritten by the next."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    filled = 0
    for part in parts:
        rest = memoryview(part)
        while rest:
            taken = rest[: _PIECE_BYTES - filled]
            piece[filled : filled + len(taken)] = taken
            filled, rest = filled + len(taken), rest[len(taken) :]
            if filled == _PIECE_BYTES:
                yield piece
                filled = 0
    yield piece[:filled]
