"""Blocks of keys and values as bytes, for a disk, a server or another process: a safetensors file with a checksum.

The format is that of safetensors (eight bytes of header length, a JSON header, the values one after the other), so any
of its readers can look inside; nothing in it is ever executed. The header's `__metadata__` says what the values are:

    format        aethermind-kv-blocks/1
    fingerprint   what computed them: model, adapter, quantisation, tenant
    token_hash    which tokens, and what precedes them
    num_tokens    how many positions are filled
    checksum      blake2b of the header, with this entry empty, and of all that follows it

Source of the format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NoReturn

from aethermind.errors import CacheContentError, InvalidArgumentError

__all__ = ["BlockTensor", "StoredBlocks", "read_blocks", "write_blocks"]

_FORMAT = "aethermind-kv-blocks/1"
_FIELDS = ("format", "fingerprint", "token_hash", "num_tokens", "checksum")
_METADATA = "__metadata__"
_LENGTH_BYTES = 8
_ALIGNMENT = 64  # values begin at multiples of it where the bytes do
_DTYPES = {
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "int32": ("I32", 4),
    "int64": ("I64", 8),
}
_NAMES = {short: (name, size) for name, (short, size) in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """Some blocks' rows of one tensor of a cache.

    `data` holds the values little-endian in C order, `shape` is [num_blocks, …], `dtype_name` a full name such as
    `bfloat16` or `float8_e4m3fn`.
    """

    dtype_name: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """The content of blocks, and what it is the content of.

    Attributes:
        fingerprint: all that the values depend on besides tokens: model, adapter, quantisation, tenant.
        token_hash: the hash of the tokens in the blocks and of those before them.
        num_tokens: positions filled, from the first on; the rest of the last block is noise.
        tensors: every tensor's rows, by the tensor's name, in one order of blocks.
        notes: what else the writer wants to find again.
    """

    fingerprint: str
    token_hash: str
    num_tokens: int
    tensors: Mapping[str, BlockTensor]
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """Blocks that the tensors hold; 0 without tensors."""
        return next((tensor.shape[0] for tensor in self.tensors.values()), 0)


def write_blocks(blocks: StoredBlocks) -> bytes:
    """Return `blocks` as the bytes of one container.

    Raises InvalidArgumentError for a tensor whose data is not what its dtype and shape say, for tensors of different
    numbers of blocks, and for a name of the format's own.
    """
    if taken := [name for name in _FIELDS if name in blocks.notes] + [_METADATA] * (_METADATA in blocks.tensors):
        raise InvalidArgumentError(f"Nothing stored can be called {taken[0]!r}: the format uses that name itself.")
    entries: dict[str, Any] = {}
    position = 0
    for name, tensor in blocks.tensors.items():
        short, size = _checked(name, tensor, blocks.num_blocks)
        end = position + size
        entries[name] = {"dtype": short, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    metadata = {
        **blocks.notes,
        "format": _FORMAT,
        "fingerprint": blocks.fingerprint,
        "token_hash": blocks.token_hash,
        "num_tokens": str(blocks.num_tokens),
        "checksum": "",
    }
    header = {_METADATA: metadata, **entries}
    content = [memoryview(tensor.data).cast("B") for tensor in blocks.tensors.values() if len(tensor.data)]
    metadata["checksum"] = _checksum(header, content)
    text = _dump(header)
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *content))


def read_blocks(data: bytes | bytearray | memoryview, fingerprint: str | None = None) -> StoredBlocks:
    """Return what `write_blocks` wrote; its tensors are views of `data`.

    Raises CacheContentError when `data` is not whole, not unchanged or not such a container, or when it is by another
    `fingerprint` than the one given.
    """
    view = memoryview(data).cast("B").toreadonly()
    header, values = _split(view)
    metadata = header[_METADATA]
    claimed = metadata["checksum"]
    metadata["checksum"] = ""
    actual = _checksum(header, [values])
    if claimed != actual:
        _fail(f"have the checksum {actual}, not {claimed[:64]}: they were changed or damaged")
    # What follows was written by `write_blocks`, unless somebody forged a checksum: wrong values then, no wild reads.
    if metadata.pop("format") != _FORMAT:
        _fail(f"are not of the format {_FORMAT}")
    del metadata["checksum"]
    written_by = metadata.pop("fingerprint")
    if fingerprint is not None and written_by != fingerprint:
        _fail(f"are of {written_by!r}, and wanted are those of {fingerprint!r}")
    token_hash, num_tokens = metadata.pop("token_hash"), metadata.pop("num_tokens")
    del header[_METADATA]
    try:
        tensors = {name: _tensor(entry, values) for name, entry in header.items()}
        return StoredBlocks(written_by, token_hash, int(num_tokens), tensors, metadata)
    except (KeyError, TypeError, ValueError) as error:
        _fail(f"have a header that does not describe them ({type(error).__name__}: {error})")


def _checked(name: str, tensor: BlockTensor, num_blocks: int) -> tuple[str, int]:
    """The short name of a tensor's dtype, and its bytes."""
    if tensor.dtype_name not in _DTYPES:
        raise InvalidArgumentError(
            f"Tensor {name!r} is of dtype {tensor.dtype_name!r}; a container takes {', '.join(_DTYPES)}."
        )
    short, itemsize = _DTYPES[tensor.dtype_name]
    size, given = math.prod(tensor.shape) * itemsize, memoryview(tensor.data).nbytes
    if size != given or not tensor.shape or tensor.shape[0] != num_blocks:
        raise InvalidArgumentError(
            f"Tensor {name!r} of shape {tensor.shape} and dtype {tensor.dtype_name} comes with {given} bytes; "
            f"it should have {size}, and be of {num_blocks} blocks like the others."
        )
    return short, size


def _tensor(entry: Any, values: memoryview) -> BlockTensor:
    name, itemsize = _NAMES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not 0 <= begin <= end <= len(values) or math.prod(shape) * itemsize != end - begin:
        raise ValueError(f"bytes {begin} to {end} of {len(values)} for a shape of {shape}")
    return BlockTensor(name, shape, values[begin:end])


def _split(view: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The header, whose metadata has all fields as strings, and the values."""
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if len(view) < _LENGTH_BYTES or length > len(view) - _LENGTH_BYTES:
        _fail(f"are cut off: there are {len(view)} bytes, and the header alone should have {length}")
    text = bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + length])
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        _fail(f"have a header that is not JSON ({' '.join(str(error).split())[:120]})")
    metadata = header.get(_METADATA) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(name), str) for name in _FIELDS):
        _fail(f"have no metadata of the format {_FORMAT}")
    return header, view[_LENGTH_BYTES + length :]


def _checksum(header: Mapping[str, Any], values: list[memoryview]) -> str:
    """128 bits over a header whose checksum is empty, and over the values."""
    digest = blake2b(_dump(header), digest_size=16)
    for part in values:
        digest.update(part)
    return digest.hexdigest()


def _dump(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _fail(problem: str) -> NoReturn:
    raise CacheContentError(f"Stored keys and values {problem}. Delete them; they can be computed again.")
