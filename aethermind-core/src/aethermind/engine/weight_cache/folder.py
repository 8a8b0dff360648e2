"""A folder of packed weights, one safetensors file for each set of constants, which several processes may share.

A tensor of a file holds the bytes of a constant, padded to whole cache lines. The header is padded to a page, so that
every constant begins at a cache line wherever the file is mapped.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.atomic_file import PARTIAL
from aethermind.cache_folder import CacheFolder
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.errors import CheckpointError
from aethermind.hal.mapped import maps_huge_pages
from aethermind.hal.memory import ALIGNMENT, align_up

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["WeightFolder"]

_SUFFIX = ".safetensors"
_PAGE_BYTES = 4096
_PIECE_BYTES = 2 << 20
"""Bytes of one write, at multiples of this size, so that Linux caches the file in huge pages. Larger writes lead to
larger folios, which Linux maps by small pages.
"""


class WeightFolder:
    """Up to `max_bytes` of files; the least recently used are evicted first.

    The mapping of an evicted file remains valid.
    """

    needs_huge_pages = True
    """Whether files have to be mapped by huge pages: small ones make every decode step slower."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._files = CacheFolder(path, _SUFFIX, max_bytes=max_bytes)

    def has(self, key: str) -> bool:
        """Whether there is a file for this key."""
        return self._files.has(key)

    def find(self, key: str, sizes: Mapping[str, int]) -> dict[str, Bytes]:
        """Map the constants of a key, with these sizes in bytes; empty if there is no file, or if the system maps it by
        small pages.

        CheckpointError for a damaged file, which is deleted.
        """
        place = self._files.path_of(key)
        try:
            is_large = place.stat().st_size > 2 * _PIECE_BYTES
            if self.needs_huge_pages and is_large and not maps_huge_pages(place):
                return {}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        try:
            found = _read(place, key, sizes)
        except CheckpointError:
            if not place.exists():  # another process evicted it meanwhile
                return {}
            self._files.discard(key)
            raise
        self._files.touch(key)
        return found

    def write(
        self,
        key: str,
        constants: Mapping[str, Bytes],
        is_cancelled: Callable[[], bool] = lambda: False,
        *,
        model: str = "",
    ) -> bool:
        """Write a file whose metadata hold the model's path. False if `is_cancelled` returned true before the end, if
        the file would exceed the folder's limit, or if it would be mapped by small pages.

        OSError if the file cannot be written. An unfinished file is deleted in every case.
        """
        nbytes = sum(align_up(constant.nbytes, ALIGNMENT) for constant in constants.values())
        if nbytes > self.max_bytes:
            return False
        self._files.create()
        if self.needs_huge_pages and not self._has_huge_pages():
            return False
        self._files.evict(nbytes)
        if shutil.disk_usage(self.path).free < 2 * nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._files.write(key, _pieces(_contents(key, constants, model)), is_cancelled)

    def _has_huge_pages(self) -> bool:
        """Whether files of this folder are mapped by huge pages, tried with a small file."""
        with tempfile.NamedTemporaryFile(dir=self.path, suffix=PARTIAL, buffering=0) as file:
            for _ in range(4):
                file.write(bytes(_PIECE_BYTES))
            return maps_huge_pages(Path(file.name))


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
        raise CheckpointError(f"{place} holds other weights than its name indicates.")
    return found


def _contents(key: str, constants: Mapping[str, Bytes], model: str) -> Iterator[Any]:
    """Yield the parts of a file in order."""
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
    """Split the parts into pieces of one size, except for the last; each piece is overwritten by the next."""
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
