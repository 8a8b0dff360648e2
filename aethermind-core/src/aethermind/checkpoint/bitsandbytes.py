"""Checkpoints of bitsandbytes: matrices of 4 bits (NF4 and FP4) and of 8 bits (LLM.int8).

    4 bits  X.weight, bytes [N · K / 2, 1] of any dtype, row after row; each has two codes, the first in its high bits.
            X.weight.quant_map float32 [16], the values of codes; X.weight.absmax float32, a factor for each
            block of consecutive values, which may cross rows; X.weight.quant_state.bitsandbytes__nf4 (fp4),
            JSON with the shape and the block size. With `nested` (double quantisation) absmax are bytes, too:
            absmax = nested_quant_map[byte] · nested_absmax[block of bytes] + nested_offset
    8 bits  X.weight int8 [N, K], X.SCB float32 [N]: code · SCB / 127, the format int8_channel

The blocks of 4 bits have values that no weight format has; they are requantised as int8. (Dettmers et al. 2022, 2023;
layouts as by the package.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import INT8, QuantizedTensors, warn_of_requantised
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.ops.weight_format import QuantizedWeight, parse_format

__all__ = ["BitsAndBytesCheckpoint"]

Array = npt.NDArray[Any]

_WEIGHT, _SCB = ".weight", ".SCB"
_QUANT_STATE = ".quant_state.bitsandbytes__"
_ABSMAX, _QUANT_MAP = ".absmax", ".quant_map"
_NESTED_ABSMAX, _NESTED_QUANT_MAP = ".nested_absmax", ".nested_quant_map"
_PART_SUFFIXES = (_ABSMAX, _QUANT_MAP, _NESTED_ABSMAX, _NESTED_QUANT_MAP, f"{_QUANT_STATE}nf4", f"{_QUANT_STATE}fp4")
_ROW_FORMAT = ".weight_format"
_MAX_QUANT_STATE_BYTES = 1 << 16
_INT8_STEPS = np.float32(127)


@dataclass(frozen=True, slots=True)
class _QuantState:
    """The `quant_state` of a matrix of 4 bits; the nested sizes are 0 without double quantisation.

    `kind` is nf4 or fp4; sizes of blocks are in values.
    """

    kind: str
    shape: tuple[int, int]
    block_size: int
    nested_block_size: int
    nested_offset: float


class BitsAndBytesCheckpoint(QuantizedTensors):
    """A checkpoint of bitsandbytes whose matrices are QuantizedWeights; implements `StoredTensors`. Immutable."""

    def __init__(self, stored: StoredTensors, model_name: str) -> None:
        """Check that the parts of each matrix fit together; `model_name` is for messages.

        Raises:
            CheckpointError: there is no quantised matrix, or a part of one is missing or does not fit.
        """
        self._stored = stored
        self._model_name = model_name
        self._names = frozenset(stored.names)
        states = {name[: name.index(_QUANT_STATE)]: name for name in stored.names if _QUANT_STATE in name}
        self._states = {name: self._read_quant_state(name, state) for name, state in states.items()}
        int8_names = {name.removesuffix(_SCB) + _WEIGHT for name in stored.names if name.endswith(_SCB)}
        self._infos = {name: self._describe_4bit(name, state) for name, state in self._states.items()}
        self._infos |= {name: self._describe_int8(name) for name in sorted(int8_names)}
        if not self._infos:
            raise CheckpointError(
                f"{model_name} says that it is quantised by bitsandbytes, and its weights are not: bitsandbytes would "
                "quantise them while it loads them. Take quantization_config out of config.json, and pass a format as "
                "quantization if you want one."
            )
        part_names = {f"{name}{part}" for name in self._states for part in _PART_SUFFIXES}
        part_names |= {name.removesuffix(_WEIGHT) + suffix for name in int8_names for suffix in (_SCB, _ROW_FORMAT)}
        self._unquantised_names = tuple(
            name for name in stored.names if name not in part_names and name not in self._infos
        )
        kinds = " or ".join(sorted({state.kind for state in self._states.values()}))
        warn_of_requantised(model_name, len(self._states), len(self._infos), f"are {kinds}")

    def _weight(self, name: str) -> QuantizedWeight:
        if name not in self._states:
            return self._int8(name, self._infos[name])
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # INT8.quantize refuses values that are not finite
                return INT8.quantize(self._values_4bit(name, self._states[name]))
        except InvalidArgumentError as error:
            raise CheckpointError(f"{self._model_name}: {name}: {error} Fetch the weights again.") from None

    def _values(self, name: str, dtype: npt.DTypeLike) -> Array:
        if name in self._states:
            return self._values_4bit(name, self._states[name])
        values: Array = self._plain_array(name) * self._plain_array(self._scb(name)).astype(np.float32).reshape(-1, 1)
        values *= 1 / _INT8_STEPS
        return values

    def _values_4bit(self, name: str, state: _QuantState) -> Array:
        """The float32 values [N, K] of a matrix of 4 bits."""
        packed = np.ascontiguousarray(self._plain_array(name)).reshape(-1).view(np.uint8)
        values = self._plain_array(f"{name}{_QUANT_MAP}").astype(np.float32).reshape(-1)
        pairs = np.stack([np.repeat(values, 16), np.tile(values, 16)], axis=1)  # the two values of each byte
        dense: Array = pairs[packed].reshape(-1)[: prod(state.shape)]
        factors = self._absmax(name, state)
        num_full_blocks = dense.size // state.block_size
        dense[: num_full_blocks * state.block_size].reshape(num_full_blocks, state.block_size)[:] *= factors[
            :num_full_blocks, None
        ]
        dense[num_full_blocks * state.block_size :] *= factors[num_full_blocks:]
        return dense.reshape(state.shape)

    def _absmax(self, name: str, state: _QuantState) -> Array:
        """The float32 factor of each block of a matrix of 4 bits."""
        stored = self._plain_array(f"{name}{_ABSMAX}").reshape(-1)
        if not state.nested_block_size:
            return stored.astype(np.float32)
        nested_values = self._plain_array(f"{name}{_NESTED_QUANT_MAP}").astype(np.float32).reshape(-1)[stored]
        nested_absmax = self._plain_array(f"{name}{_NESTED_ABSMAX}").astype(np.float32).reshape(-1)
        factors = np.repeat(nested_absmax, state.nested_block_size)[: stored.size]
        return nested_values * factors + np.float32(state.nested_offset)

    def _int8(self, name: str, info: TensorInfo) -> QuantizedWeight:
        """The QuantizedWeight of a matrix of LLM.int8."""
        assert info.weight_format is not None
        with np.errstate(over="ignore"):
            scales = (self._plain_array(self._scb(name)).astype(np.float32) / _INT8_STEPS).astype(np.float16)
        if not np.isfinite(scales).all():
            raise CheckpointError(
                f"{self._model_name} has {self._scb(name)} that are not finite. Fetch the weights again."
            )
        return QuantizedWeight(info.weight_format, self._plain_array(name), scales.reshape(-1, 1))

    def _describe_4bit(self, name: str, state: _QuantState) -> TensorInfo:
        """Describe a matrix of 4 bits; CheckpointError for parts that are missing or do not fit."""
        num_values = prod(state.shape)
        num_blocks = -(-num_values // state.block_size)
        expected = {
            _ABSMAX: (("U8",) if state.nested_block_size else ("F32",), num_blocks),
            _QUANT_MAP: (("F32",), 16),
        }
        if state.nested_block_size:
            expected[_NESTED_ABSMAX] = (("F32",), -(-num_blocks // state.nested_block_size))
            expected[_NESTED_QUANT_MAP] = (("F32",), 256)
        stored = self._stored.info(name) if name in self._names else None
        if stored is None or stored.num_bytes != -(-num_values // 2):
            actual = "missing" if stored is None else f"of {stored.num_bytes} bytes"
            self._fail(name, f"is {actual}, where its quant_state says {list(state.shape)}")
        for suffix, (dtype_names, count) in expected.items():
            info = self._stored.info(f"{name}{suffix}") if f"{name}{suffix}" in self._names else None
            if info is None or info.dtype_name not in dtype_names or prod(info.shape) != count:
                actual = "nothing" if info is None else f"{info.dtype_name} {list(info.shape)}"
                self._fail(f"{name}{suffix}", f"is {actual}, where {count} numbers of {dtype_names[0]} are expected")
        num_bytes = sum(
            self._stored.info(part).num_bytes for part in (name, *(f"{name}{suffix}" for suffix in expected))
        )
        return TensorInfo(state.kind, state.shape, 0, num_bytes, INT8)

    def _describe_int8(self, name: str) -> TensorInfo:
        """Describe a matrix of LLM.int8; CheckpointError for parts that are missing or do not fit."""
        info = self._stored.info(name) if name in self._names else None
        scales = self._stored.info(self._scb(name))
        is_matrix = info is not None and info.dtype_name == "I8" and len(info.shape) == 2
        if info is None or not is_matrix or scales.dtype_name != "F32" or prod(scales.shape) != info.shape[0]:
            actual = "missing" if info is None else f"{info.dtype_name} {list(info.shape)}"
            self._fail(name, f"is {actual} with SCB {list(scales.shape)}, where an int8 matrix is expected")
        row_format = name.removesuffix(_WEIGHT) + _ROW_FORMAT
        if row_format in self._names and np.any(self._plain_array(row_format)):
            self._fail(name, "is stored in a layout of one kind of GPU, not in rows")
        return TensorInfo("llm_int8", info.shape, 0, info.num_bytes + scales.num_bytes, parse_format("int8_channel"))

    def _read_quant_state(self, name: str, state_name: str) -> _QuantState:
        """Read the quant_state of a matrix, JSON in a tensor of bytes; CheckpointError if it is not valid."""
        info = self._stored.info(state_name)
        kind = state_name[state_name.index(_QUANT_STATE) + len(_QUANT_STATE) :]
        try:
            if info.dtype_name != "U8" or info.num_bytes > _MAX_QUANT_STATE_BYTES:
                raise ValueError("a tensor of bytes is expected")
            entries = json.loads(self._plain_array(state_name).tobytes())
            rows, columns = entries["shape"]
            sizes = (rows, columns, entries["blocksize"], entries.get("nested_blocksize", 1))
            if any(type(size) is not int or size <= 0 for size in sizes) or kind not in ("nf4", "fp4"):
                raise ValueError("sizes are positive numbers, of nf4 or fp4")
            nested = sizes[3] if f"{name}{_NESTED_ABSMAX}" in self._names else 0
            return _QuantState(kind, (rows, columns), sizes[2], nested, float(entries.get("nested_offset", 0.0)))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            self._fail(state_name, f"does not describe a matrix ({error!s:.80})")

    def _scb(self, name: str) -> str:
        """The name of the scales of a matrix of LLM.int8."""
        return name.removesuffix(_WEIGHT) + _SCB

    def _plain_array(self, name: str) -> Array:
        array = self._stored.array(name)
        assert not isinstance(array, QuantizedWeight), "parts of matrices are plain tensors"
        return np.asarray(array)

    def _fail(self, name: str, problem: str) -> NoReturn:
        raise CheckpointError(
            f"{self._model_name} has a tensor {name!r:.120} that {problem} (bitsandbytes). Fetch the weights again."
        )
