"""One .safetensors file: a fully validated JSON header, and memory-mapped values.

The format: eight bytes of header length N (little-endian), N bytes of JSON `{name: {dtype, shape, data_offsets}}`,
then the values, tensor after tensor without a gap. The `safetensors` library is not used because this module provides
read-only views of the mapped file (bfloat16 included) without torch and without a copy, and an error message with the
file and the numbers for each way in which a file can be invalid.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.source import TensorInfo, dtype_names
from aethermind.errors import CheckpointError, remedy

__all__ = ["MAX_HEADER_BYTES", "SafetensorsFile"]

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit on a header."""

_LENGTH_BYTES = 8
_MAX_RANK = 64  # NumPy's limit
_METADATA = "__metadata__"


class SafetensorsFile:
    """A validated, memory-mapped .safetensors file; implements `TensorSource`.

    Immutable. The mapping lives as long as this object or any array taken from it; pages are read when touched.
    A file must not be changed while it is mapped.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and check its whole header against its size.

        Raises:
            CheckpointError: the file is missing or unreadable, or is not exactly a safetensors file: length,
                JSON, names, dtypes, shapes, offsets (no hole, no overlap, nothing left over).
        """
        self.path = Path(path)
        assert sys.byteorder == "little", "safetensors values are little-endian"
        try:
            with open(self.path, "rb") as file:
                self._num_file_bytes = os.fstat(file.fileno()).st_size
                if self._num_file_bytes < _LENGTH_BYTES:
                    self._fail(f"has {self._num_file_bytes} bytes, fewer than the {_LENGTH_BYTES} of a header length")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {error.strerror}. Check the path and its permissions."
            ) from error
        header = self._read_header()
        self._metadata = MappingProxyType(self._checked_metadata(header.pop(_METADATA, {})))
        self._tensors = MappingProxyType({name: self._checked_tensor(name, entry) for name, entry in header.items()})
        self._check_layout()

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's description by name, in the header's order; offsets count from `data_begin`."""
        return self._tensors

    @property
    def metadata(self) -> Mapping[str, str]:
        """The writer's metadata, free-form strings such as `{"format": "pt"}`."""
        return self._metadata

    @property
    def data_begin(self) -> int:
        """Byte offset in the file at which the values begin."""
        return self._data_begin

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the header's order."""
        return tuple(self._tensors)

    @property
    def total_bytes(self) -> int:
        """Size of all values together."""
        return self._num_file_bytes - self._data_begin

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        info = self._tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path} has no tensor {name!r} among its {len(self._tensors)}.")
        return info

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values: a read-only view of the mapped file, C-contiguous, without a copy.

        The writer chose the offsets, so the view may be unaligned (`array.flags.aligned`).
        Raises CheckpointError for an unknown name.
        """
        info = self.info(name)
        return np.ndarray(info.shape, info.dtype, buffer=self._map, offset=self._data_begin + info.begin)

    def _read_header(self) -> dict[str, Any]:
        num_header_bytes = int.from_bytes(self._map[:_LENGTH_BYTES], "little")
        num_left = self._num_file_bytes - _LENGTH_BYTES
        if num_header_bytes > num_left:
            self._fail(
                f"announces a header of {num_header_bytes} bytes, but only {num_left} of its "
                f"{self._num_file_bytes} bytes are left"
            )
        if num_header_bytes > MAX_HEADER_BYTES:
            self._fail(f"announces a header of {num_header_bytes} bytes; at most {MAX_HEADER_BYTES} are allowed")
        self._data_begin = _LENGTH_BYTES + num_header_bytes
        text = self._map[_LENGTH_BYTES : self._data_begin]
        if not text.startswith(b"{"):
            self._fail(f"has a header of {num_header_bytes} bytes that does not begin with a brace")
        try:
            header = json.loads(text.decode(), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            self._fail(f"has a header of {num_header_bytes} bytes that is not valid JSON ({reason})")
        assert isinstance(header, dict)
        return header

    def _checked_metadata(self, metadata: Any) -> dict[str, str]:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            self._fail(f"has a {_METADATA} that is not a map from strings to strings")
        return metadata

    def _checked_tensor(self, name: str, entry: Any) -> TensorInfo:
        where = f"has a tensor {_short(name)}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._fail(f"{where} described by {_short(entry)}, not by dtype, shape and data_offsets")
        dtype_name, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = dtype_names().get(dtype_name) if isinstance(dtype_name, str) else None
        if dtype is None:
            self._fail(f"{where} of dtype {_short(dtype_name)}, which is none of {', '.join(dtype_names())}")
        if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(map(_is_size, shape)):
            self._fail(f"{where} of shape {_short(shape)}, which is not a list of up to {_MAX_RANK} sizes")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
            self._fail(f"{where} with data_offsets {_short(offsets)}, which are not two byte positions")
        begin, end = offsets
        num_bytes = math.prod(shape) * dtype.itemsize
        if end - begin != num_bytes:
            self._fail(
                f"{where} of shape {_short(shape)} and dtype {dtype_name}, which takes {num_bytes} bytes, "
                f"but data_offsets {offsets} span {end - begin}"
            )
        # A size of zero makes the tensor empty, so nothing above bounds the other sizes, which NumPy multiplies.
        if math.prod(max(size, 1) for size in shape) * dtype.itemsize >= 2**63:
            self._fail(f"{where} of shape {_short(shape)}, which is too big to address")
        return TensorInfo(dtype_name, tuple(shape), begin, end)

    def _check_layout(self) -> None:
        """Check that tensors, in order of their offsets, fill the data section without gaps or overlaps."""
        position, previous = 0, "the header"
        for name, info in sorted(self._tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
            if info.begin != position:
                problem = "overlap" if info.begin < position else "leave a hole"
                self._fail(
                    f"has tensors that {problem}: {_short(name)} begins at byte {info.begin} of the data, "
                    f"but {_short(previous)} ends at byte {position}"
                )
            position, previous = info.end, name
        num_data_bytes = self._num_file_bytes - self._data_begin
        if position != num_data_bytes:
            problem = "is truncated" if position > num_data_bytes else "has bytes that belong to no tensor"
            self._fail(f"{problem}: its tensors take {position} bytes, its data section has {num_data_bytes}")

    def _fail(self, problem: str) -> NoReturn:
        advice = remedy(self.path, otherwise="Fetch or write the file again.")
        raise CheckpointError(f"{self.path} {problem}. {advice}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of a JSON object; ValueError for a key that occurs twice."""
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise ValueError(f"duplicate key {_short(key)}")
        unique[key] = value
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_size(value: object) -> bool:
    """Whether a JSON value is an integer from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value < 2**63


def _short(value: object) -> str:
    """A value of an untrusted file in at most 120 characters."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
