"""What crosses between the processes, as bytes: msgpack with a closed list of our own types, nothing executable.

Every value comes out as it went in, tuples and types included, but for integers beyond 64 bits: these become the
greatest that fit, which says the same wherever a limit is meant and is as wrong wherever one is exceeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import msgpack
import numpy as np

from aethermind import errors
from aethermind.engine.config import EngineConfig
from aethermind.engine.kv_offload.stats import KVStoreStats
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.observation.model_info import ModelInfo
from aethermind.engine.process import messages
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.engine.requests.request_options import RequestOptions
from aethermind.errors import InvalidArgumentError
from aethermind.model.input_processor import EmbeddingSpan
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.structured import StructuredOutputs

__all__ = ["RECORDS", "RemoteError", "Unpacker", "pack"]

RECORDS: Sequence[type[Any]] = (
    *messages.ALL,
    EngineConfig,
    EnginePrompt,
    EngineStats,
    EmbeddingSpan,
    KVStoreStats,
    ModelInfo,
    RequestOptions,
    SamplingParams,
    StructuredOutputs,
)
"""The dataclasses that may cross. Both ends have the same list, because both run the same version."""

_MOST_BYTES = 1 << 30
"""Of a message; a prompt in embeddings may be large."""

_SMALL_BYTES = 1 << 16
"""What most messages stay below."""

_CODE_OF = {record: code for code, record in enumerate(RECORDS)}
_NAMES = {record: tuple(one.name for one in fields(record) if one.init) for record in RECORDS}
_TUPLE, _ARRAY, _MAPPING, _ERROR = 120, 121, 122, 123
_NO_ITEMS = msgpack.ExtType(_TUPLE, msgpack.packb([]))
"""Most of the tuples that cross are empty: what a request does not ask for."""

_READING: Mapping[str, Any] = {"strict_map_key": False, "unicode_errors": "surrogatepass"}


class RemoteError(Exception):
    """The other process met an error that nobody foresaw; its log has the traceback."""


def pack(value: Any) -> bytes:
    """The bytes of a value. InvalidArgumentError for one that is not of a kind that crosses."""
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer(default=_as_extension, strict_types=True, unicode_errors="surrogatepass")
    packed: bytes = packer.pack(value)
    if len(packed) <= _SMALL_BYTES:
        _packers.append(packer)
    return packed


_packers: list[Any] = []
"""Idle ones, with the memory they have: to get that anew costs more than packing a small value, and a record in a
record needs a packer of its own. Those that had something large to pack are not kept.
"""


class Unpacker:
    """Values out of bytes that come in pieces."""

    def __init__(self) -> None:
        self._stream = msgpack.Unpacker(max_buffer_size=_MOST_BYTES, ext_hook=_from_extension, **_READING)

    def feed(self, data: bytes) -> Iterator[Any]:
        """The values that are whole with `data`."""
        self._stream.feed(data)
        yield from self._stream


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_from_extension, **_READING)


def _as_extension(value: Any) -> Any:
    kind = type(value)
    if (code := _CODE_OF.get(kind)) is not None:
        return msgpack.ExtType(code, pack([getattr(value, name) for name in _NAMES[kind]]))
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, pack(list(value))) if value else _NO_ITEMS
    if isinstance(value, Integral):
        return max(-(2**63), min(int(value), 2**64 - 1))
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list):  # of a kind of its own
        return list(value)
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, pack([value.dtype.str, list(value.shape), value.tobytes()]))
    if isinstance(value, Mapping):
        return msgpack.ExtType(_MAPPING, pack(dict(value)))
    if isinstance(value, Exception):
        return msgpack.ExtType(_ERROR, pack([_error_code(value), str(value)]))
    raise InvalidArgumentError(f"{value!r:.80} is a {kind.__name__}, which cannot be sent to an engine's process.")


def _from_extension(code: int, data: bytes) -> Any:
    content = _unpack(data)
    if code == _TUPLE:
        return tuple(content)
    if code == _ARRAY:
        dtype, shape, values = content
        return np.frombuffer(values, dtype).reshape(shape)
    if code == _MAPPING:
        return content
    if code == _ERROR:
        name, text = content
        return RemoteError(text) if name is None else getattr(errors, name)(text)
    record = RECORDS[code]
    return record(**dict(zip(_NAMES[record], content, strict=True)))


def _error_code(error: Exception) -> str | None:
    """The nearest of our own exceptions that it is one of, None if it is none."""
    return next((kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind), None)
