"""Serialised KV blocks and sequences, for a disk, a server or another process: safetensors files with a checksum.

The format is that of safetensors (eight bytes of header length, a JSON header, the values one after the other), so any
of its readers can open it; none of it is ever executed. The header's `__metadata__` describes the values:

    format        aethermind-kv-blocks/1
    fingerprint   all that the values depend on besides tokens and extra_key: weights, dtypes, block layout
    token_hash    a hash of the tokens and of those before them
    num_tokens    the number of positions that are filled
    checksum      blake2b of the header, with this entry empty, and of all that follows it

A saved sequence adds the positions of its tokens as runs, num_original (how many leading tokens were computed before
any token was dropped or moved: only these may be published for prefix reuse), extra_key, and num_freed (how many
leading blocks each sliding window has freed). The tensors of its recurrent state are [1, …], after those of blocks;
their names begin with `state/`.

Source of the format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NoReturn, Protocol

from aethermind.cache.positions import PositionRun, TokenPositions
from aethermind.cache.recurrent_states import NULL_SLOT
from aethermind.cache.sequence import CachedSequence
from aethermind.errors import CacheContentError, InvalidArgumentError

__all__ = [
    "BlockContents",
    "BlockTensor",
    "StoredBlocks",
    "hash_tokens",
    "pack_sequence",
    "read_blocks",
    "unpack_sequence",
    "write_blocks",
]

_FORMAT = "aethermind-kv-blocks/1"
_FIELDS = ("format", "fingerprint", "token_hash", "num_tokens", "checksum")
_METADATA = "__metadata__"
_STATE = "state/"
_LENGTH_BYTES = 8
_ALIGNMENT = 64  # values begin at a multiple of this, counted from the first byte
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
_FULL_NAMES = {short_name: (name, size) for name, (short_name, size) in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """The rows of some blocks in one tensor of a cache.

    `data` holds the values, little-endian and in C order; `shape` is [num_blocks, …]; `dtype_name` is a full name such
    as `bfloat16` or `float8_e4m3fn`.
    """

    dtype_name: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """The content of blocks, or a recurrent state, with its metadata.

    Attributes:
        fingerprint: all that the values depend on besides tokens and extra_key: weights, dtypes, block layout.
        token_hash: the hash of the tokens in the blocks and of those before them.
        num_tokens: how many tokens the blocks hold; the slots after them, in the last block, are undefined.
        tensors: the rows of each tensor, by the tensor's name; all have the blocks in the same order.
        extra_metadata: further entries of the container's metadata, which the writer defines.
        states: the recurrent state after the tokens, by tensor, each of shape [1, …].
    """

    fingerprint: str
    token_hash: str
    num_tokens: int
    tensors: Mapping[str, BlockTensor]
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, BlockTensor] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """Blocks that the tensors hold; 0 without tensors."""
        return next((tensor.shape[0] for tensor in self.tensors.values()), 0)


def write_blocks(blocks: StoredBlocks) -> bytes:
    """Serialise `blocks` to one container.

    Raises InvalidArgumentError for a tensor whose data does not fit its dtype and shape, for tensors of different
    numbers of blocks, and for a name that the format reserves.
    """
    reserved = [name for name in _FIELDS if name in blocks.extra_metadata]
    reserved += [name for name in blocks.tensors if name == _METADATA or name.startswith(_STATE)]
    if reserved:
        raise InvalidArgumentError(f"Nothing stored can be called {reserved[0]!r}: the format uses that name itself.")
    entries: dict[str, Any] = {}
    position = 0
    state_tensors = {_STATE + name: tensor for name, tensor in blocks.states.items()}
    tensors = {**blocks.tensors, **state_tensors}
    for name, tensor in tensors.items():
        short_name, size = _dtype_and_size(name, tensor, 1 if name in state_tensors else blocks.num_blocks)
        end = position + size
        entries[name] = {"dtype": short_name, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    metadata = {
        **blocks.extra_metadata,
        "format": _FORMAT,
        "fingerprint": blocks.fingerprint,
        "token_hash": blocks.token_hash,
        "num_tokens": str(blocks.num_tokens),
        "checksum": "",
    }
    header = {_METADATA: metadata, **entries}
    content = [memoryview(tensor.data).cast("B") for tensor in tensors.values() if len(tensor.data)]
    metadata["checksum"] = _checksum(header, content)
    text = _dump(header)
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *content))


def read_blocks(data: bytes | bytearray | memoryview, fingerprint: str | None = None) -> StoredBlocks:
    """Read a container of `write_blocks`; the tensors are views of `data`.

    Raises CacheContentError if `data` is truncated, changed or not such a container, or if its fingerprint is not the
    given one.
    """
    view = memoryview(data).cast("B").toreadonly()
    header, values = _split_container(view)
    metadata = header[_METADATA]
    stored_checksum = metadata["checksum"]
    metadata["checksum"] = ""
    actual = _checksum(header, [values])
    if stored_checksum != actual:
        _fail(f"have the checksum {actual}, not {stored_checksum[:64]}: they were changed or damaged")
    # The rest is from `write_blocks`. With a forged checksum values would be wrong, but no read is out of bounds.
    if metadata.pop("format") != _FORMAT:
        _fail(f"are not of the format {_FORMAT}")
    del metadata["checksum"]
    stored_fingerprint = metadata.pop("fingerprint")
    if fingerprint is not None and stored_fingerprint != fingerprint:
        _fail(f"are of {stored_fingerprint!r}, and those of {fingerprint!r} are needed")
    token_hash, num_tokens = metadata.pop("token_hash"), metadata.pop("num_tokens")
    del header[_METADATA]
    try:
        tensors = {name: _read_tensor(entry, values) for name, entry in header.items()}
        states = {name.removeprefix(_STATE): tensors.pop(name) for name in header if name.startswith(_STATE)}
        return StoredBlocks(stored_fingerprint, token_hash, int(num_tokens), tensors, metadata, states)
    except (KeyError, TypeError, ValueError) as error:
        _fail(f"have a header that does not describe them ({type(error).__name__}: {error})")


def _dtype_and_size(name: str, tensor: BlockTensor, num_blocks: int) -> tuple[str, int]:
    """Return the short name of a tensor's dtype, and its size in bytes."""
    if tensor.dtype_name not in _DTYPES:
        raise InvalidArgumentError(
            f"Tensor {name!r} is of dtype {tensor.dtype_name!r}; a container takes {', '.join(_DTYPES)}."
        )
    short_name, itemsize = _DTYPES[tensor.dtype_name]
    size, num_bytes = math.prod(tensor.shape) * itemsize, memoryview(tensor.data).nbytes
    if size != num_bytes or not tensor.shape or tensor.shape[0] != num_blocks:
        raise InvalidArgumentError(
            f"Tensor {name!r} of shape {tensor.shape} and dtype {tensor.dtype_name} comes with {num_bytes} bytes; "
            f"it should have {size}, and be of {num_blocks} blocks like the others."
        )
    return short_name, size


def _read_tensor(entry: Any, values: memoryview) -> BlockTensor:
    name, itemsize = _FULL_NAMES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not 0 <= begin <= end <= len(values) or math.prod(shape) * itemsize != end - begin:
        raise ValueError(f"bytes {begin} to {end} of {len(values)} for a shape of {shape}")
    return BlockTensor(name, shape, values[begin:end])


def _split_container(view: memoryview) -> tuple[dict[str, Any], memoryview]:
    """Split a container into its header, whose metadata has all `_FIELDS` as strings, and the bytes of the values."""
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
    """Return a 128-bit checksum of the header, with its checksum empty, and of the values."""
    digest = blake2b(_dump(header), digest_size=16)
    for part in values:
        digest.update(part)
    return digest.hexdigest()


def _dump(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _fail(problem: str) -> NoReturn:
    raise CacheContentError(f"Stored keys and values {problem}. Delete them; they can be computed again.")


class BlockContents(Protocol):
    """Block I/O of an engine: copies the content of device blocks and state slots, of all layers, to host memory and
    back.
    """

    @property
    def fingerprint(self) -> str:
        """All that the content depends on besides tokens and extra_key: weights, dtypes, block layout."""
        ...

    def read(self, blocks: Sequence[int]) -> Mapping[str, BlockTensor]:
        """Return the content of `blocks`: every tensor's rows, in their order."""
        ...

    def write(self, tensors: Mapping[str, BlockTensor], blocks: Sequence[int]) -> None:
        """Write `tensors` to `blocks`; CacheContentError, and no write, if shapes or dtypes are not the cache's."""
        ...

    def read_states(self, slot: int, copies: list[tuple[int, int]]) -> Mapping[str, BlockTensor]:
        """Return the recurrent state in a slot, each tensor [1, …], after the pending `copies` of states.

        The list is cleared. Called for models with recurrent layers only.
        """
        ...

    def write_states(self, tensors: Mapping[str, BlockTensor], slot: int, copies: list[tuple[int, int]]) -> None:
        """Write a recurrent state to a slot, like `read_states`; CacheContentError as of `write`."""
        ...


def hash_tokens(token_ids: Sequence[int]) -> str:
    """Return a hash of the tokens in their order, as 32 hexadecimal digits."""
    return blake2b(array("q", token_ids).tobytes(), digest_size=16).hexdigest()


def pack_sequence(
    sequence: CachedSequence,
    num_blocks: int,
    contents: BlockContents,
    token_ids: Sequence[int],
    copies: list[tuple[int, int]],
) -> bytes:
    """Serialise the first `num_blocks` entries of the tables of a sequence in device memory, whose tokens are
    `token_ids`, and its recurrent state, after the pending `copies` of states.
    """
    extra_metadata = {
        "positions": json.dumps(sequence.positions.runs),
        "num_original": str(sequence.num_original),
        "extra_key": sequence.extra_key.hex(),
    }
    if sequence.windows:
        extra_metadata["num_freed"] = json.dumps(sequence.num_freed)
    token_hash = hash_tokens(token_ids[: sequence.num_tokens])
    tensors = contents.read(sequence.held_blocks(num_blocks))
    states = {} if sequence.state_slot == NULL_SLOT else contents.read_states(sequence.state_slot, copies)
    return write_blocks(
        StoredBlocks(contents.fingerprint, token_hash, sequence.num_tokens, tensors, extra_metadata, states)
    )


def unpack_sequence(
    data: bytes,
    contents: BlockContents,
    token_ids: Sequence[int],
    block_size: int,
    windows: tuple[int, ...] = (),
) -> tuple[CachedSequence, StoredBlocks]:
    """Return a sequence without blocks, and the content that it needs; `windows` are those of its groups.

    Raises CacheContentError for damaged data, data of another model or of other groups of layers, and data of other
    tokens than `token_ids`.
    """
    stored = read_blocks(data, contents.fingerprint)
    if stored.token_hash != hash_tokens(token_ids[: stored.num_tokens]):
        raise CacheContentError(
            f"Stored keys and values of {stored.num_tokens} tokens are of others than the {len(token_ids)} given. "
            "Load them with the tokens they were saved with."
        )
    try:
        extra_metadata = stored.extra_metadata
        sequence = CachedSequence([], stored.num_tokens, bytes.fromhex(extra_metadata["extra_key"]), windows)
        sequence.num_freed = [int(count) for count in json.loads(extra_metadata.get("num_freed", "[]"))]
        if len(sequence.num_freed) != len(windows) or min(sequence.num_freed, default=0) < 0:
            raise ValueError(f"they have {len(sequence.num_freed)} windows, and the model {len(windows)}")
        if not sequence.may_truncate(stored.num_tokens, block_size):
            raise ValueError("blocks that a window sees are missing")
        sequence.num_original = int(extra_metadata["num_original"])
        sequence.set_positions(
            sequence.num_original, TokenPositions(PositionRun(*run) for run in json.loads(extra_metadata["positions"]))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CacheContentError(f"Stored keys and values are not those of a saved sequence ({error}).") from error
    return sequence, stored
