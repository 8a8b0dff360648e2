"""One .gguf file: metadata and memory-mapped tensors. Names, shapes, bounds and scales are checked, values are not.

The format (versions 2 and 3, little-endian): a magic, counts, metadata as key, type and value, then a name, sizes,
type and offset for each tensor, then the values from the next multiple of `general.alignment` on. The `gguf` library
is not used because it makes two arrays of every string of a vocabulary, which takes seconds. Here the strings of a
vocabulary are skipped, and decoded when they are iterated over.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.gguf_blocks import BLOCK_TYPES, BlockType
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError, InvalidArgumentError, remedy
from aethermind.first_party import pip_install_command
from aethermind.ops.quantization import row_chunks
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["GgufFile", "GgufStrings", "TruncatedHeaderError"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_RANK = 4
_STACK_RANK = 3
"""The rank of stacks of matrices, such as those of experts, which are read as one matrix with the rows of all."""
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_MARK_DISTANCE = 1024
"""The offset of every 1024th string of an array is kept, so that `GgufStrings.select` need not read all strings."""
_NUMBER_DTYPES = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_PLAIN_DTYPES = {0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16"}
# For error messages only: types of activations, and types that llama.cpp no longer supports.
_UNSUPPORTED = {
    9: "Q8_1", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 42: "Q2_0",
}  # fmt: skip


class TruncatedHeaderError(CheckpointError):
    """The header of a file extends beyond its end."""


class GgufStrings:
    """The strings of an array in a mapped file, decoded at each access."""

    def __init__(self, file: GgufFile, mark_offsets: Sequence[int], count: int) -> None:
        """`mark_offsets` are those of every `_MARK_DISTANCE`th string and of the end; the array has `count` strings."""
        self._file = file
        self._mark_offsets = mark_offsets
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Decode the strings in order; CheckpointError for one that is not UTF-8."""
        data, position = self._file.map, self._mark_offsets[0]
        for _ in range(self._count):
            begin = position + _LENGTH.size
            position = begin + _LENGTH.unpack_from(data, position)[0]
            try:
                yield data[begin:position].decode()
            except UnicodeDecodeError:
                self._refuse_string(begin)

    def select(self, indices: Iterable[int]) -> Iterator[str]:
        """Decode the strings at increasing indices; reading starts at the last mark before each."""
        data, passed, position = self._file.map, 0, self._mark_offsets[0]
        for index in indices:
            mark = index // _MARK_DISTANCE
            if mark * _MARK_DISTANCE > passed:
                passed, position = mark * _MARK_DISTANCE, self._mark_offsets[mark]
            begin = position
            while passed <= index:
                begin = position + _LENGTH.size
                position = begin + _LENGTH.unpack_from(data, position)[0]
                passed += 1
            try:
                yield data[begin:position].decode()
            except UnicodeDecodeError:
                self._refuse_string(begin)

    def _refuse_string(self, begin: int) -> NoReturn:
        self._file.fail(f"has a string at byte {begin} that is not UTF-8")


class GgufFile:
    """A memory-mapped .gguf file; implements `TensorSource` with GGUF's own tensor names. Immutable.

    The mapping lives as long as this object or any array taken from it. A file must not be changed while it is mapped.
    """

    def __init__(self, path: Path) -> None:
        """Map the file, read its metadata and check the offsets of its tensors.

        Raises:
            CheckpointError: the file is missing or unreadable, is not GGUF of a known version, is truncated, or
                is inconsistent. Tensors of unsupported types are an error only when they are accessed.
        """
        self.path = Path(path)
        assert sys.byteorder == "little", "GGUF values are little-endian"
        self.map = self._map_file()
        self.num_bytes = len(self.map)
        reader = _Reader(self, len(_MAGIC))
        version = reader.number("<u4")
        if version not in _VERSIONS:
            self.fail(f"is GGUF of version {version}; little-endian versions 2 and 3 are read")
        num_tensors, num_keys = reader.number("<u8"), reader.number("<u8")
        self._metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = reader.string()
            if key in self._metadata:
                self.fail(f"has the key {key!r:.80} twice")
            self._metadata[key] = reader.value(key, reader.number("<u4"))
        self._types: dict[str, int] = {}
        self._tensors: dict[str, TensorInfo] = {}
        for _ in range(num_tensors):
            self._read_tensor(reader)
        self._check_layout(reader.position)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key: Python numbers, bools and strings, NumPy arrays, and `GgufStrings`."""
        return MappingProxyType(self._metadata)

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the file's order."""
        return tuple(self._types)

    @property
    def total_bytes(self) -> int:
        """Size of all values together. Raises CheckpointError for tensors of unsupported types."""
        return sum(self.info(name).num_bytes for name in self.names)

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name, and for a type that cannot be read."""
        info = self._tensors.get(name)
        if info is None:
            if name not in self._types:
                raise CheckpointError(f"{self.path} has no tensor {name!r} among its {len(self._types)}.")
            num_unreadable = len(self._types) - len(self._tensors)
            readable = ", ".join(block.name for block in BLOCK_TYPES.values())
            raise CheckpointError(
                f"{self.path} stores tensor {name!r} in the quantised type {_UNSUPPORTED[self._types[name]]}, which "
                f"cannot be read (as {num_unreadable} of its {len(self._types)} tensors cannot). Take a file of the "
                f"model in {readable}, F16 or BF16."
            )
        if info.weight_format is not None:
            self._check_library(name, BLOCK_TYPES[self._types[name]])
        return info

    def _check_library(self, name: str, block: BlockType) -> None:
        """CheckpointError for a type whose codebook is in the library `gguf`, if that is not installed."""
        if block.needs_library and find_spec("gguf") is None:
            raise CheckpointError(
                f"{self.path} stores tensor {name!r} in the quantised type {block.name}, whose codebook comes with the "
                f"package gguf. Run `{pip_install_command('aethermind-core[gguf]')}`, or take a file in another type."
            )

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """Return a tensor's values: a read-only view of the mapped file, C-contiguous, without a copy. A quantised
        tensor is returned as a QuantizedWeight, with unpacked integer codes.

        Raises CheckpointError for an unknown name, an unsupported type, and scales or products of scales that are not
        finite in float16.
        """
        info = self.info(name)
        if info.weight_format is not None:
            return self._quantised(name, info)
        return np.ndarray(info.shape, info.dtype, buffer=self.map, offset=self._data_begin + info.begin)

    def values(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a tensor's values: those of a quantised tensor are computed in float32 and rounded to `dtype`.

        Tensors that are not quantised are returned as by `array`.

        CheckpointError as of `array`, and for values that are not finite in `dtype`.
        """
        info = self.info(name)
        if info.weight_format is None:
            return np.asarray(self.array(name))
        block, rows, columns = BLOCK_TYPES[self._types[name]], *info.shape
        try:
            values = block.values(self._bytes(info), (rows, columns), dtype)
        except InvalidArgumentError as error:
            self.fail(f"has a tensor {name!r:.80} of type {block.name} that is not valid ({error})")
        if not all(np.isfinite(values[chunk]).all() for chunk in row_chunks(values.shape)):
            self.fail(f"has a tensor {name!r:.80} of type {block.name} with values that are not finite in {dtype}")
        return values

    def _bytes(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """View the bytes of a tensor in the mapped file."""
        return np.ndarray((info.num_bytes,), np.uint8, buffer=self.map, offset=self._data_begin + info.begin)

    def _quantised(self, name: str, info: TensorInfo) -> QuantizedWeight:
        block = BLOCK_TYPES[self._types[name]]
        rows, columns = info.shape
        try:
            weight = block.read(self._bytes(info), (rows, columns))
        except InvalidArgumentError as error:
            self.fail(f"has a tensor {name!r:.80} of type {block.name} that is not valid ({error})")
        for scales in (weight.scales, weight.offsets, weight.super_block_scales):
            if scales is not None and not np.isfinite(scales).all():
                self.fail(f"has a tensor {name!r:.80} of type {block.name} with scales that are not finite in float16")
        return weight

    def byte_range(self, name: str) -> tuple[int, int]:
        """Return the offsets in the file at which a tensor begins and ends."""
        info = self.info(name)
        return self._data_begin + info.begin, self._data_begin + info.end

    def fail(self, problem: str, error_class: type[CheckpointError] = CheckpointError) -> NoReturn:
        """Raise an error about this file."""
        advice = remedy(self.path, otherwise="Fetch or write the file again.")
        raise error_class(f"{self.path} {problem}. {advice}")

    def _map_file(self) -> mmap.mmap:
        if self.path.exists() and not self.path.is_file():
            raise CheckpointError(f"{self.path} is not a regular file. Name a .gguf file on disk.")
        try:
            with open(self.path, "rb") as file:
                if file.read(len(_MAGIC)) != _MAGIC:
                    self.fail(f"is not a GGUF file: it does not begin with {_MAGIC.decode()}")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {error.strerror}. Check the path and its permissions."
            ) from error

    def _read_tensor(self, reader: _Reader) -> None:
        name = reader.string()
        rank = reader.number("<u4")
        if name in self._types or rank > _MAX_RANK:
            self.fail(f"has the tensor {name!r:.80} twice" if name in self._types else f"has a tensor of rank {rank}")
        # GGUF writes the innermost size first.
        shape = tuple(reversed([reader.number("<u8") for _ in range(rank)]))
        if rank == _STACK_RANK:
            shape = (shape[0] * shape[1], shape[2])
        type_id, begin = reader.number("<u4"), reader.number("<u8")
        # NumPy multiplies all sizes and overflows even if one of them is 0; then the tensor has no bytes to check.
        if prod(max(size, 1) for size in shape) >= 2**60:
            self.fail(f"has a tensor {name!r:.80} of shape {shape}, which is too big to address")
        self._types[name] = type_id
        if type_id in _PLAIN_DTYPES:
            info = TensorInfo(_PLAIN_DTYPES[type_id], shape, begin, begin)
            self._tensors[name] = TensorInfo(info.dtype_name, shape, begin, begin + prod(shape) * info.dtype.itemsize)
        elif type_id in BLOCK_TYPES:
            block = BLOCK_TYPES[type_id]
            if len(shape) != 2 or shape[1] % block.num_values:
                self.fail(
                    f"has a tensor {name!r:.80} of shape {shape} and type {block.name}, which is for matrices whose "
                    f"rows are multiples of {block.num_values} values"
                )
            self._tensors[name] = TensorInfo(block.name, shape, begin, begin + block.nbytes(shape), block.format)
        elif type_id not in _UNSUPPORTED:
            self.fail(f"has a tensor {name!r:.80} of unknown type {type_id}")

    def _check_layout(self, header_end: int) -> None:
        alignment = self._metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            self.fail(f"has general.alignment {alignment!r:.40}, which is not a multiple of 8")
        self._data_begin = -(-header_end // alignment) * alignment
        num_data_bytes = max(self.num_bytes - self._data_begin, 0)
        for name, info in self._tensors.items():
            if info.begin % alignment:
                self.fail(f"has a tensor {name!r:.80} at byte {info.begin} of the data, not a multiple of {alignment}")
            if info.end > num_data_bytes:
                self.fail(
                    f"is truncated: its tensor {name!r:.80} ends at byte {info.end} of the data, "
                    f"of which there are {num_data_bytes}"
                )
        ranges = sorted((info.begin, info.end, name) for name, info in self._tensors.items() if info.num_bytes)
        for (_, end, name), (begin, _, other) in pairwise(ranges):
            if begin < end:
                self.fail(
                    f"has tensors that overlap: {other!r:.80} begins at byte {begin} of the data, {name!r:.80} ends at "
                    f"byte {end}"
                )


class _Reader:
    """A reader of a mapped file. Mutable: reading advances its position."""

    def __init__(self, file: GgufFile, position: int) -> None:
        self._file = file
        self.position = position

    def number(self, dtype: str) -> Any:
        """Read one number of a NumPy dtype."""
        return self.numbers(dtype, 1)[0].item()

    def numbers(self, dtype: str, count: int) -> npt.NDArray[Any]:
        """Read `count` numbers, as a view."""
        begin = self._advance(count * np.dtype(dtype).itemsize)
        return np.frombuffer(self._file.map, dtype, count, begin)

    def string(self) -> str:
        """Read a length, and as many bytes of UTF-8."""
        begin = self._advance(self.number("<u8"))
        try:
            return self._file.map[begin : self.position].decode()
        except UnicodeDecodeError:
            self._file.fail(f"has a string at byte {begin} that is not UTF-8")

    def value(self, key: str, type_id: int) -> Any:
        """Read a metadata value of the type `type_id`."""
        if type_id == _STRING:
            return self.string()
        if type_id in _NUMBER_DTYPES:
            return self.number(_NUMBER_DTYPES[type_id])
        if type_id != _ARRAY:
            self._file.fail(f"has a value of unknown type {type_id} for {key!r:.80}")
        element_type, count = self.number("<u4"), self.number("<u8")
        if element_type in _NUMBER_DTYPES:
            return self.numbers(_NUMBER_DTYPES[element_type], count)
        if element_type != _STRING:
            self._file.fail(
                f"has an array of type {element_type} for {key!r:.80}, which is not one of numbers or strings"
            )
        return GgufStrings(self._file, self._skip_strings(count), count)

    def _skip_strings(self, count: int) -> list[int]:
        """Skip `count` strings; return the offsets of every `_MARK_DISTANCE`th one."""
        data, position, mark_offsets = self._file.map, self.position, [self.position]
        try:
            for passed in range(0, count, _MARK_DISTANCE):
                for _ in range(min(_MARK_DISTANCE, count - passed)):
                    position += _LENGTH.size + _LENGTH.unpack_from(data, position)[0]
                mark_offsets.append(position)
        except (struct.error, OverflowError):
            self._truncated()
        self.position = position
        self._advance(0)
        return mark_offsets

    def _advance(self, num_bytes: int) -> int:
        begin = self.position
        if begin + num_bytes > self._file.num_bytes:
            self._truncated()
        self.position = begin + num_bytes
        return begin

    def _truncated(self) -> NoReturn:
        problem = f"is truncated: its header extends beyond its {self._file.num_bytes} bytes"
        self._file.fail(problem, TruncatedHeaderError)
