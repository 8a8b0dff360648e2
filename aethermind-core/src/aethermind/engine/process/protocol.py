"""The protocol between a server's process and an engine's process: its messages, and their encoding in msgpack.

The encoding knows a closed list of types and can carry nothing executable. A decoded value equals the value that was
encoded, tuples included. NumPy scalars become int and float, subclasses become their base class, and an error becomes
the nearest class of `aethermind.errors`. An integer beyond 64 bits is clamped to the 64-bit range, which does not
change the meaning of a limit, or whether a value is out of range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import msgpack
import numpy as np

from aethermind import errors
from aethermind.engine.config import EngineConfig
from aethermind.engine.kv_offload.health import KVStoreStats
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.observation.model_info import ModelInfo
from aethermind.engine.requests.output import Logprob, RequestMetrics
from aethermind.engine.requests.output_delta import CompletionDelta, OutputDelta
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.engine.requests.request import RequestOptions
from aethermind.engine.requests.sessions import SessionInfo
from aethermind.errors import InvalidArgumentError
from aethermind.hal.device import DeviceUsage
from aethermind.model.input_processor import EmbeddingSpan
from aethermind.sampling.params import SamplingParams, StructuredOutputs

__all__ = [
    "Abort",
    "Add",
    "Close",
    "EngineOutputs",
    "Forget",
    "Loaded",
    "LogLine",
    "RECORDS",
    "RemoteError",
    "Setup",
    "UTILITY_METHODS",
    "Unpacker",
    "UtilityCall",
    "UtilityResult",
    "decode_delta",
    "encode_delta",
    "pack",
]

UTILITY_METHODS = frozenset({"adjust", "embed", "load_adapter", "manage_session", "unload_adapter"})
"""The methods of `Engine` that a `UtilityCall` may name. `pack` can encode their arguments and results."""


# -- messages to the engine's process ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: the model to load, and the lowest level of the log records to forward."""

    model: str
    config: EngineConfig
    log_level: int


@dataclass(frozen=True, slots=True)
class Add:
    """Adds a request. `handle` identifies it and is never used again; `name` is the request id in error messages."""

    handle: int
    name: str
    prompt: EnginePrompt
    params: SamplingParams
    options: RequestOptions | None
    hold_s: float
    """Seconds for which the engine may hold output back to coalesce it (see `OutputCoalescer`)."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a request; its output so far is sent, with the finish reason `abort`."""

    handle: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Ends a request if it is still open, and discards its output: its client has gone."""

    handle: int


@dataclass(frozen=True, slots=True)
class UtilityCall:
    """Calls one of `UTILITY_METHODS` of the engine between two steps. The `UtilityResult` has the same number."""

    number: int
    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Close:
    """The last message: stop after the current step."""


# -- messages from the engine's process -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is loaded; requests are accepted from now on."""

    info: ModelInfo
    sampling_defaults: dict[str, Any]
    vocab_size: int


@dataclass(frozen=True, slots=True)
class UtilityResult:
    """The result of a `UtilityCall`, or the error that it raised."""

    number: int
    value: Any
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record, with its traceback as text. `created` is in seconds since the epoch."""

    level: int
    name: str
    text: str
    created: float
    traceback: str | None


@dataclass(frozen=True, slots=True)
class EngineOutputs:
    """All output of an engine's process since its last message. Most fields are empty in most messages."""

    logs: list[LogLine]
    progress: tuple[int, int] | None = None
    """Progress of loading: done, total."""
    loaded: Loaded | None = None
    failure: Exception | None = None
    """Why the model could not be loaded, or why the engine failed later. This is the last message then."""
    results: list[UtilityResult] | None = None
    refused: list[tuple[int, Exception]] | None = None
    """Handles of requests that could not be added, with the errors."""
    deltas: list[list[Any]] | None = None
    """New output of requests: for each its handle and what `encode_delta` returns."""
    stats: EngineStats | None = None


# -- encoding ----------------------------------------------------------------------------------------------------

RECORDS: Sequence[type[Any]] = (
    *(Setup, Add, Abort, Forget, UtilityCall, Close, Loaded, UtilityResult, LogLine, EngineOutputs),
    EngineConfig,
    EnginePrompt,
    EngineStats,
    EmbeddingSpan,
    DeviceUsage,
    KVStoreStats,
    ModelInfo,
    RequestOptions,
    SamplingParams,
    SessionInfo,
    StructuredOutputs,
)
"""The dataclasses that can be encoded. Both processes run the same version, so both have the same list."""

_MAX_MESSAGE_BYTES = 1 << 30
"""Large, because a prompt may be given as embeddings."""

_MAX_REUSED_BYTES = 1 << 16
"""A packer that encoded more than this is not reused, because it would keep its large buffer."""

_EXTENSION_CODES = {record: code for code, record in enumerate(RECORDS)}
_NAMES = {record: tuple(field.name for field in fields(record) if field.init) for record in RECORDS}
_TUPLE, _ARRAY, _MAPPING, _ERROR = 120, 121, 122, 123
_METRICS = tuple(field.name for field in fields(RequestMetrics))
_EMPTY_TUPLE = msgpack.ExtType(_TUPLE, msgpack.packb([]))
"""Encoded once, because most tuples in requests are empty."""

_UNPACK_OPTIONS: Mapping[str, Any] = {"strict_map_key": False, "unicode_errors": "surrogatepass"}


class RemoteError(Exception):
    """An unexpected error in the other process, which logged the traceback."""


def pack(value: Any) -> bytes:
    """Encode a value. InvalidArgumentError if its type cannot be encoded."""
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer(default=_as_extension, strict_types=True, unicode_errors="surrogatepass")
    packed: bytes = packer.pack(value)
    if len(packed) <= _MAX_REUSED_BYTES:
        _packers.append(packer)
    return packed


_packers: list[Any] = []
"""Idle packers with their buffers: allocating a buffer costs more than encoding a small value. A nested record needs a
packer of its own.
"""


class Unpacker:
    """Decodes values from a stream of bytes. Mutable."""

    def __init__(self) -> None:
        self._stream = msgpack.Unpacker(max_buffer_size=_MAX_MESSAGE_BYTES, ext_hook=_from_extension, **_UNPACK_OPTIONS)

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the values that `data` completes."""
        self._stream.feed(data)
        yield from self._stream


def encode_delta(delta: OutputDelta) -> list[Any]:
    """Return the values of a delta, without its request id, as nested lists.

    Deltas are the most frequent messages, and lists are faster to encode than `RECORDS`.
    """
    completions = [
        [
            completion.index,
            completion.text,
            completion.token_ids,
            _logprobs_to_lists(completion.logprobs),
            completion.num_tokens,
            completion.finish_reason,
            completion.stop_reason,
        ]
        for completion in delta.completions
    ]
    metrics = [getattr(delta.metrics, name) for name in _METRICS]
    prompt_logprobs = _logprobs_to_lists(delta.prompt_logprobs)
    return [
        completions,
        delta.finished,
        metrics,
        delta.num_prompt_tokens,
        delta.num_cached_tokens,
        prompt_logprobs,
        delta.error,
        delta.error_type,
    ]


def decode_delta(request_id: str, values: list[Any]) -> OutputDelta:
    """Return the delta that `encode_delta` encoded, with this request id."""
    completions, finished, metrics, num_prompt_tokens, num_cached_tokens, prompt_logprobs, *error = values
    return OutputDelta(
        request_id,
        [
            CompletionDelta(index, text, token_ids, _logprobs_from_lists(logprobs), *rest)
            for index, text, token_ids, logprobs, *rest in completions
        ],
        finished,
        RequestMetrics(*metrics),
        num_prompt_tokens,
        num_cached_tokens,
        _logprobs_from_lists(prompt_logprobs),
        *error,
    )


def _logprobs_to_lists(logprobs: Sequence[dict[int, Logprob] | None] | None) -> list[Any] | None:
    if logprobs is None:
        return None
    return [
        by_token
        and {token_id: [logprob.logprob, logprob.rank, logprob.decoded_token] for token_id, logprob in by_token.items()}
        for by_token in logprobs
    ]


def _logprobs_from_lists(flat: list[Any] | None) -> Any:
    if flat is None:
        return None
    return [by_token and {token_id: Logprob(*logprob) for token_id, logprob in by_token.items()} for by_token in flat]


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_from_extension, **_UNPACK_OPTIONS)


def _as_extension(value: Any) -> Any:
    type_ = type(value)
    if (code := _EXTENSION_CODES.get(type_)) is not None:
        return msgpack.ExtType(code, pack([getattr(value, name) for name in _NAMES[type_]]))
    if type_ is tuple:
        return msgpack.ExtType(_TUPLE, pack(list(value))) if value else _EMPTY_TUPLE
    if isinstance(value, Integral):
        return max(-(2**63), min(int(value), 2**64 - 1))
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list):  # a subclass of list
        return list(value)
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, pack([value.dtype.str, list(value.shape), value.tobytes()]))
    if isinstance(value, Mapping):
        return msgpack.ExtType(_MAPPING, pack(dict(value)))
    if isinstance(value, Exception):
        return msgpack.ExtType(_ERROR, pack([_error_class(value), str(value), getattr(value, "param", None)]))
    raise InvalidArgumentError(f"{value!r:.80} is a {type_.__name__}, which cannot be sent to an engine's process.")


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
        name, text, param = content
        if name is None:
            return RemoteError(text)
        error_type = getattr(errors, name)
        return error_type(text, param=param) if issubclass(error_type, InvalidArgumentError) else error_type(text)
    record = RECORDS[code]
    return record(**dict(zip(_NAMES[record], content, strict=True)))


def _error_class(error: Exception) -> str | None:
    """Return the name of the error's nearest base class in `aethermind.errors`, None if there is none."""
    return next((base.__name__ for base in type(error).__mro__ if getattr(errors, base.__name__, None) is base), None)
