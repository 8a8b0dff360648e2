"""Every value that crosses comes out as it went in, and nothing else crosses."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind import SamplingParams, StructuredOutputs, errors
from aethermind.engine.config import EngineConfig
from aethermind.engine.kv_offload import KVStoreStats
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.observation.model_info import ModelInfo
from aethermind.engine.process.protocol import (
    RECORDS,
    Abort,
    Add,
    Close,
    EngineOutputs,
    Forget,
    Loaded,
    LogLine,
    RemoteError,
    Setup,
    Unpacker,
    UtilityCall,
    UtilityResult,
    pack,
)
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.engine.requests.request import RequestOptions
from aethermind.engine.requests.sessions import SessionInfo
from aethermind.errors import AetherMindError, ContextLengthError, InvalidArgumentError
from aethermind.hal.device import DeviceUsage
from aethermind.model.input_processor import EmbeddingSpan

EVERY_PARAMETER: dict[str, Any] = {
    "n": 3,
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.25,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": -0.5,
    "frequency_penalty": 2.0,
    "logit_bias": {3: 1.5, 1: -100.0},
    "bad_words": ("fox", "hen"),
    "allowed_token_ids": (5, 2, 3),
    "logits_processors": ("plugin",),
    "extra_args": {"depth": 3, "names": ["a", None], 5: True},
    "seed": 2**64 - 1,
    "max_tokens": 2**31,
    "min_tokens": 4,
    "stop": ("\n", "\ud800 ü"),
    "stop_token_ids": (9, 8),
    "ignore_eos": True,
    "logprobs": 20,
    "prompt_logprobs": 0,
}
STRUCTURED: tuple[dict[str, Any], ...] = (
    {"json": {"type": "object", "properties": {"b": {}, "a": {}}}},
    {"regex": "a+"},
    {"choice": ["yes", "no"]},
    {"grammar": 'start: "a"'},
    {"json_object": True},
)
INFO = ModelInfo("m", "A", "cpu:0", "why", "float32", 2, 64, 4, 16, 10, 40, 0, 0, 0.25, "here", 0, ("int8", "int4"))
USAGE = DeviceUsage("cuda:1", 3, 4, 0.5)
NUMBERS = {one.name: number for number, one in enumerate(dataclasses.fields(EngineStats))}
STATS = EngineStats(**{**NUMBERS, "kv_store": KVStoreStats(1, 2, 3, 4, 5), "device_usage": (USAGE,)})  # type: ignore[arg-type]
PROMPT = EnginePrompt("Once", [1, 2, 3])
VALUES: list[Any] = [
    Setup("demo", EngineConfig(quantization="int4", swap_space=1.5, num_threads=2), 30),
    Add(7, "req-1", PROMPT, SamplingParams(**EVERY_PARAMETER), RequestOptions(-3, 12.5, 100, 10), 0.25),
    Add(0, "", EnginePrompt(None, []), SamplingParams(), None, 0.0),
    *(SamplingParams(structured_outputs=StructuredOutputs(**one)) for one in STRUCTURED),
    Abort(1),
    Forget(2),
    UtilityCall(3, "embed", {"token_ids": [1], "pooling": "last", "is_normalized": True}),
    Close(),
    UtilityResult(4, None),
    UtilityResult(5, [SessionInfo("a/b", "swapped", 48, is_protected=True, is_saved=True, idle_s=1.5)]),
    SessionInfo("c", "saved", 3),
    EngineOutputs(
        [LogLine(30, "aethermind.x", "text", 1.5, "Traceback")], (1, 3), Loaded(INFO, {"top_k": 3}, 9), stats=STATS
    ),
    EngineOutputs([], refused=[(3, "no")], deltas=[[1, [[0, "a", [1], None, 1, None, None]], False]], results=[]),
]


def crossed(value: Any) -> Any:
    (received,) = Unpacker().feed(pack(value))
    return received


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_decoded_values_equal_the_encoded_ones(value: Any) -> None:
    assert crossed(value) == value


def test_the_values_cover_every_sampling_parameter() -> None:
    names = {one.name for one in dataclasses.fields(SamplingParams) if one.init}
    assert names == {*EVERY_PARAMETER, "structured_outputs"}
    default = SamplingParams()
    assert all(getattr(SamplingParams(**EVERY_PARAMETER), name) != getattr(default, name) for name in EVERY_PARAMETER)


def test_the_values_cover_every_record() -> None:
    inner = {EngineConfig, EnginePrompt, EngineStats, ModelInfo, RequestOptions, StructuredOutputs, LogLine, Loaded}
    seen = {type(value) for value in VALUES} | inner | {EmbeddingSpan, KVStoreStats, DeviceUsage}
    assert seen == set(RECORDS)


def test_embeddings_and_vectors() -> None:
    span = EmbeddingSpan(2, np.arange(6, dtype=np.float32).reshape(2, 3))
    (received,) = crossed(EnginePrompt(None, [0, 0, 0, 0], (span,))).embeddings
    assert (received.start, received.digest()) == (2, span.digest())
    vector = crossed(UtilityResult(1, np.float32([1.5, np.inf, -0.0]))).value
    assert (vector.dtype, vector.tobytes()) == (np.float32, np.float32([1.5, np.inf, -0.0]).tobytes())


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_keep_their_class_and_message(name: str) -> None:
    error = getattr(errors, name)("It has 3 of 2.")
    received = crossed(UtilityResult(1, None, error)).error
    assert (type(received), str(received)) == (type(error), "It has 3 of 2.")


def test_an_error_of_a_plugin_becomes_its_nearest_public_base_class() -> None:
    class TooLongError(ContextLengthError):
        pass

    assert type(crossed(TooLongError("x"))) is ContextLengthError
    received = crossed(KeyError("x"))
    assert isinstance(received, RemoteError)
    assert not isinstance(received, AetherMindError)


def test_integers_beyond_64_bits_are_clamped() -> None:
    assert crossed(SamplingParams(max_tokens=10**30)).max_tokens == 2**64 - 1
    assert crossed([10**30, -(10**30), np.int64(-3), np.float32(0.5)]) == [2**64 - 1, -(2**63), -3, 0.5]


def test_other_types_cannot_be_encoded() -> None:
    for value in ({1, 2}, object(), print, [b"", lambda: None]):
        with pytest.raises(InvalidArgumentError, match="cannot be sent"):
            pack(value)
    with pytest.raises(IndexError):
        crossed_raw(msgpack.packb(msgpack.ExtType(100, b"\x90")))


def crossed_raw(data: bytes) -> Any:
    return list(Unpacker().feed(data))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None))
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(-9, 9), inner)
        | st.builds(UtilityResult, st.integers(0, 9), inner)
    ),
    max_leaves=20,
)


@given(st.lists(PLAIN, max_size=4), st.integers(1, 50))
def test_values_are_decoded_from_chunks_of_any_size(values: list[Any], size: int) -> None:
    data = b"".join(map(pack, values))
    unpacker = Unpacker()
    received = [one for start in range(0, len(data), size) for one in unpacker.feed(data[start : start + size])]
    assert received == values
    assert repr(received) == repr(values)  # 1, 1.0 and True are equal, and different
