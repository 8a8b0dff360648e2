"""What the checkpoints of all quantisation methods share: the method's name, and a view with quantised weights."""

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
from aethermind.ops.weight_format import QuantizedWeight

__all__ = [
    "METHODS",
    "QuantizedTensors",
    "dequantized",
    "quantization_method",
    "warn_of_requantised",
    "without_activation_scales",
]

logger = get_logger(__name__)


METHODS = ("gptq", "awq", "auto-round", "compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4", "bitsandbytes", "modelopt",
           "hqq", "torchao")  # fmt: skip
"""The methods whose checkpoints are read."""

_OTHER_NAMES = {"intel/auto-round": "auto-round", "auto_round": "auto-round"}


def quantization_method(described: Any, where: str) -> str:
    """Return the method of a quantization_config, one of `METHODS`; ConfigError for another one, or for none."""
    if not isinstance(described, Mapping):
        raise ConfigError(f"The quantization_config of {where!r} should be an object, not {type(described).__name__}.")
    given = described.get("quant_method") or _unnamed_method(described)
    method = _OTHER_NAMES.get(given.lower(), given.lower()) if isinstance(given, str) else given
    if method not in METHODS:
        how = "in a way that its quantization_config does not name" if given is None else f"by {given!r:.80}"
        raise ConfigError(
            f"{where!r} is quantised {how}, which cannot be read. Use the unquantised model and pass a format as "
            f"quantization, or take it quantised by {', '.join(METHODS[:-1])} or {METHODS[-1]}, or as .gguf."
        )
    return str(method)


def _unnamed_method(described: Mapping[str, Any]) -> str | None:
    """Infer the method from fields that only one tool writes, for a config without quant_method; None if unknown."""
    if described.get("load_in_8bit") or described.get("load_in_4bit"):
        return "bitsandbytes"
    if "config_groups" in described:
        return "compressed-tensors"
    if "quant_algo" in described:
        return "modelopt"
    # AWQ's quant_config.json has w_bit; AutoGPTQ's quantize_config.json has bits.
    return "awq" if "w_bit" in described else "gptq" if "bits" in described else None


def dequantized(stored: StoredTensors, dtype: npt.DTypeLike) -> StoredTensors:
    """Return tensors with the values of quantised ones: those of the checkpoint's own format, computed in float32 and
    rounded once to `dtype`.

    They are described as before. A class without a method of this name is returned as it is.
    """
    of_class = getattr(stored, "dequantized", None)
    found: StoredTensors = stored if of_class is None else of_class(dtype)
    return found


class QuantizedTensors:
    """Stored tensors, of which some are parts of quantised weights; implements `StoredTensors`.

    A class fills `_infos`, the descriptions of quantised weights by name, and `_others`, the names of the tensors that
    are read as they are stored. It has `_weight`, and `_values` where values are rounded in a weight.
    """

    _stored: StoredTensors
    _infos: Mapping[str, TensorInfo]
    _others: Sequence[str]
    _dtype: npt.DTypeLike | None = None

    def dequantized(self, dtype: npt.DTypeLike) -> StoredTensors:
        """Return the tensors with the values of quantised ones; see the function of this name."""
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
        """A quantised matrix in the weight format that its description names."""
        raise NotImplementedError

    def _values(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The values of a quantised matrix in its described shape, in `dtype` or in float32, which `array` rounds."""
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
        return (*self._others, *self._infos)

    @property
    def total_bytes(self) -> int:
        """Size of all values together, as they are stored."""
        return self._stored.total_bytes

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        """Those of the stored tensors."""
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
        self._others = tuple(name for name in stored.names if not name.endswith(_ACTIVATION_PARTS))


def without_activation_scales(stored: StoredTensors) -> StoredTensors:
    """Leave out scales and zero points of activations and of the KV cache: kernels compute their own."""
    return _WithoutActivationScales(stored)


@cache
def warn_of_requantised(where: str, count: int, total: int, why: str) -> None:
    """Warn once of `count` out of `total` matrices that are requantised as int8, if there are any: they "have …".

    A model's weights are opened several times while it is loaded.
    """
    if count:
        logger.warning(
            "%s: %d of its %d quantised matrices %s, which no kernel computes; they are requantised as int8, with an "
            "error of up to 1/254 of the largest of 32 values.",
            *(where, count, total, why),
        )
