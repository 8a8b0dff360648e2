"""The parts that readers of quantised checkpoints share: the method's name, a view of stored tensors, groups of codes.

GPTQ, AWQ and compressed-tensors store integer codes with a scale, and perhaps a zero point, for each group of columns.
A value is scale · (code − zero point), with codes from 0; without zero points the middle code, 2^(bits − 1), is zero.
Codes of up to 4 bits are held in 4, more in 8. In weight formats, scales are rounded to float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError
from aethermind.log import get_logger
from aethermind.ops.quantization import row_chunks
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

__all__ = [
    "INT8",
    "METHODS",
    "QuantizedTensors",
    "dense_groups",
    "dequantized",
    "group_format",
    "group_weight",
    "quantization_method",
    "unpack_codes",
    "warn_of_requantised",
    "without_activation_scales",
]

logger = get_logger(__name__)


METHODS = ("gptq", "awq", "auto-round", "compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4", "bitsandbytes", "modelopt",
           "hqq", "torchao")  # fmt: skip
"""The methods whose checkpoints are read."""

_METHOD_ALIASES = {"intel/auto-round": "auto-round", "auto_round": "auto-round"}


def quantization_method(config: Any, model_name: str) -> str:
    """Return the method of a quantization_config, one of `METHODS`; ConfigError for another one, or for none."""
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"The quantization_config of {model_name!r} should be an object, not {type(config).__name__}."
        )
    method_name = config.get("quant_method") or _unnamed_method(config)
    method = (
        _METHOD_ALIASES.get(method_name.lower(), method_name.lower()) if isinstance(method_name, str) else method_name
    )
    if method not in METHODS:
        description = (
            "in a way that its quantization_config does not name" if method_name is None else f"by {method_name!r:.80}"
        )
        raise ConfigError(
            f"{model_name!r} is quantised {description}, which cannot be read. Use the unquantised model and pass a "
            f"format as quantization, or take it quantised by {', '.join(METHODS[:-1])} or {METHODS[-1]}, or as .gguf."
        )
    return str(method)


def _unnamed_method(config: Mapping[str, Any]) -> str | None:
    """Infer the method from fields that only one tool writes, for a config without quant_method; None if unknown."""
    if config.get("load_in_8bit") or config.get("load_in_4bit"):
        return "bitsandbytes"
    if "config_groups" in config:
        return "compressed-tensors"
    if "quant_algo" in config:
        return "modelopt"
    # AWQ's quant_config.json has w_bit; AutoGPTQ's quantize_config.json has bits.
    return "awq" if "w_bit" in config else "gptq" if "bits" in config else None


def dequantized(stored: StoredTensors, dtype: npt.DTypeLike) -> StoredTensors:
    """Return a view in which quantised tensors are read as dense values, computed in float32 from the checkpoint's own
    format and rounded once to `dtype`.

    Their descriptions remain those of the quantised tensors. A `stored` without a method `dequantized` is returned
    unchanged.
    """
    method = getattr(stored, "dequantized", None)
    view: StoredTensors = stored if method is None else method(dtype)
    return view


class QuantizedTensors:
    """Stored tensors, of which some are parts of quantised weights; implements `StoredTensors`.

    Subclasses fill `_infos`, the descriptions of quantised weights by name, and `_unquantised_names`, the names of the
    tensors that are read as they are stored. They implement `_weight`, and `_values` if a weight has rounded values.
    """

    _stored: StoredTensors
    _infos: Mapping[str, TensorInfo]
    _unquantised_names: Sequence[str]
    _dtype: npt.DTypeLike | None = None

    def dequantized(self, dtype: npt.DTypeLike) -> StoredTensors:
        """Return a view in which quantised tensors are read as dense values; see the function `dequantized`."""
        view = copy(self)
        view._stored, view._dtype = dequantized(self._stored, dtype), dtype
        return view

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """A tensor's values, a QuantizedWeight for a quantised matrix.

        Raises CheckpointError for an unknown name, and for scales or values that are not finite.
        """
        if name not in self._infos:
            return self._stored.array(name)
        if self._dtype is None:
            return self._weight(name)
        with np.errstate(over="ignore", invalid="ignore"):
            values = self._values(name, self._dtype).astype(self._dtype, copy=False)
        by_row = values.reshape(-1, values.shape[-1])
        if not all(np.isfinite(by_row[chunk]).all() for chunk in row_chunks(by_row.shape)):
            raise CheckpointError(
                f"{name} has values that are not finite in {np.dtype(self._dtype)}. Pass float32 or bfloat16 as dtype, "
                "or fetch the weights again."
            )
        return values

    def _weight(self, name: str) -> QuantizedWeight:
        """Read a quantised matrix in the weight format that its description names."""
        raise NotImplementedError

    def _values(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Read the dense values of a quantised matrix, in `dtype`, or in float32, which `array` rounds."""
        weight = self._weight(name)
        values: npt.NDArray[Any] = weight.format.dequantize(weight, dtype)
        return values

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return self._stored.paths

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, quantised weights last."""
        return (*self._unquantised_names, *self._infos)

    @property
    def total_bytes(self) -> int:
        """Size of all values together, as they are stored."""
        return self._stored.total_bytes

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        """The zero biases of the stored tensors."""
        return self._stored.zero_bias_names

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        return self._infos.get(name) or self._stored.info(name)


_ACTIVATION_PARTS = tuple(
    f".{activation}_{part}"
    for activation in ("input", "output", "k", "v", "q")
    for part in ("scale", "zero_point", "global_scale")
)


class _WithoutActivationScales(QuantizedTensors):
    """Stored tensors without scales and zero points of activations and of the KV cache."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._infos = {}
        self._unquantised_names = tuple(name for name in stored.names if not name.endswith(_ACTIVATION_PARTS))


def without_activation_scales(stored: StoredTensors) -> StoredTensors:
    """Leave out scales and zero points of activations and of the KV cache: kernels compute their own."""
    return _WithoutActivationScales(stored)


@cache
def warn_of_requantised(model_name: str, count: int, total: int, why: str) -> None:
    """Warn that `count` of `total` matrices are requantised as int8, if any are; `why` continues "matrices …".

    Cached, so that the warning appears once: the weights of a model are opened several times while it is loaded.
    """
    if count:
        logger.warning(
            "%s: %d of its %d quantised matrices %s, which no kernel computes; they are requantised as int8, with an "
            "error of up to 1/254 of the largest of 32 values.",
            *(model_name, count, total, why),
        )


Array = npt.NDArray[Any]

_found = parse_format("int8")
assert _found is not None, "the grammar has int8"
INT8: WeightFormat = _found
"""The format to which weights are requantised that no format holds exactly: 8 bits, 32 values share a scale."""


def unpack_codes(words: Array, bits: int, count: int) -> Array:
    """Unpack `count` codes of each row of words, uint8 [rows, count]; code i is in the bits from i · bits on.

    Words are integers of any size, little-endian; a row holds `count` codes or more.
    """
    stored = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return stored[:, :count]
    if 8 % bits:  # codes of these bits cross byte boundaries
        num_bits = stored.shape[1] * 8 // bits * bits
        code_bits = np.unpackbits(stored, axis=1, count=num_bits, bitorder="little").reshape(len(stored), -1, bits)
        codes = np.zeros(code_bits.shape[:2], np.uint8)
        for position in range(bits):
            codes |= code_bits[:, :, position] << np.uint8(position)
        return codes[:, :count]
    per_byte = 8 // bits
    codes = np.empty((len(stored), per_byte * stored.shape[1]), np.uint8)
    for position in range(per_byte):
        codes[:, position::per_byte] = (stored >> (position * bits)) & ((1 << bits) - 1)
    return codes[:, :count]


def group_format(bits: int, group_size: int, has_zeros: bool) -> WeightFormat | None:
    """Return the format of codes with groups of `group_size` columns (0: a whole row); None if there is none."""
    suffix = f"g{group_size}" if group_size else "channel"
    return parse_format(f"int{4 if bits <= 4 else 8}{'_zp' if has_zeros else ''}_{suffix}")


def group_weight(
    format: WeightFormat, codes: Array, scales: Array, zeros: Array | None, middle: int
) -> QuantizedWeight:
    """Return codes, uint8 [N, K], with scales and zero points of groups as a weight in a format of `group_format`.

    `scales` are float16 and `zeros` uint8, both [N, groups]. `zeros` may be None, and are not read, if each zero point
    is the `middle`.
    """
    if format.has_zero_point:
        return QuantizedWeight(format, codes, scales, zeros)
    return QuantizedWeight(format, (codes - np.uint8(middle)).view(np.int8), scales)


def dense_groups(
    codes: Array, scales: Array, zeros: Array | None, middle: int, groups: Array, dtype: npt.DTypeLike = np.float32
) -> Array:
    """Return the values of codes [N, K], computed in float32 and rounded to `dtype`; `groups` [K] is the group of each
    column.
    """
    dense = np.empty(codes.shape, dtype)
    for chunk in row_chunks(codes.shape):
        values = codes[chunk].astype(np.float32)
        values -= np.float32(middle) if zeros is None else zeros[chunk].astype(np.float32)[:, groups]
        values *= scales[chunk].astype(np.float32)[:, groups]
        dense[chunk] = values
    return dense
