"""FP8 checkpoints: matrices of float8_e4m3fn codes, each with a tensor of scales.

    X.weight            float8_e4m3fn [N, K]
    X.weight_scale      one number (per tensor), [N] or [N, 1] (per channel), [⌈N / n⌉, ⌈K / k⌉] (per block):
                        compressed-tensors (`float-quantized`, `mxfp8-quantized`), ModelOpt, quant_method fp8 or
                        fbgemm_fp8. Scales of the type uint8 are exponents of powers of two (E8M0)
    X.weight_scale_inv  the same for blocks of n × k values, `weight_block_size`: DeepSeek V3, Qwen3. Despite its name
                        it is a factor, too

A value is code · scale. Scales of the inputs (`input_scale`) are not used: kernels find one for each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import QuantizedTensors
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, ConfigError
from aethermind.ops.weight_format import FP8, QuantizedWeight, WeightFormat, fp8_in_blocks

__all__ = ["Fp8Checkpoint", "exponents", "has_fp8", "read_block_size"]

Array = npt.NDArray[Any]

_CODES = "F8_E4M3"
_WEIGHT = ".weight"
_SCALES = (".weight_scale", ".weight_scale_inv")
_INPUT_SCALES = (".input_scale", ".input_scale_ub", ".activation_scale")
_FLOATS = ("F32", "BF16", "F16", "U8", "F8_E8M0")
_GROUP_STRATEGIES = ("group", "tensor_group")


def has_fp8(stored: StoredTensors) -> bool:
    """Whether a checkpoint has matrices of float8_e4m3fn codes, called weights."""
    return any(name.endswith(_WEIGHT) and stored.info(name).dtype_name == _CODES for name in stored.names)


def exponents(stored: Array) -> Array:
    """Return powers of two by their biased exponents (E8M0), as float32; not finite for 255, which stands for NaN."""
    powers: Array = np.ldexp(np.float32(1), np.asarray(stored).astype(np.int32) - 127)
    return np.where(stored == 255, np.float32(np.nan), powers)


def read_block_size(described: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    """Read the block size (n, k) of a quantization_config, None for scales of rows or of whole matrices.

    ConfigError for unknown block sizes; `where` names the model. Groups of compressed-tensors that are not FP8 are
    passed over.
    """
    sizes = [described.get("weight_block_size")]
    groups = described.get("config_groups") or {}
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping) or (weights.get("type"), weights.get("num_bits")) != ("float", 8):
            continue
        sizes.append(weights.get("block_structure"))
        if weights.get("strategy") in _GROUP_STRATEGIES:
            sizes.append([1, weights.get("group_size")])
    found = [tuple(size) if isinstance(size, list) else size for size in sizes if size is not None]
    if not found:
        return None
    size = found[0]
    if (
        any(other != size for other in found)
        or not isinstance(size, tuple)
        or len(size) != 2
        or not all(type(n) is int and n > 0 for n in size)
    ):
        listed = sorted({str(size) for size in found})
        raise ConfigError(f"{where!r} has blocks of {listed} values that share a scale; that is [n, k].")
    return size


class Fp8Checkpoint(QuantizedTensors):
    """An FP8 checkpoint whose matrices are QuantizedWeights in fp8, or in fp8 with a scale for each block of a row;
    implements `StoredTensors`. Immutable. All are exact.
    """

    def __init__(self, stored: StoredTensors, block_size: tuple[int, int] | None, where: str) -> None:
        """Check that codes and scales fit together; `where` names the model in messages.

        Raises:
            CheckpointError: there are no codes, or scales are missing or have a shape that is not described.
        """
        self._stored = stored
        self._block_size = block_size
        self._where = where
        names = frozenset(stored.names)
        self._scales = {name: self._scale_name(name, names) for name in stored.names if self._has_codes(name)}
        if not self._scales:
            raise CheckpointError(
                f"{where} says that it is quantised to FP8, and has no tensor of float8_e4m3fn. Take "
                "quantization_config out of config.json if its weights are not quantised."
            )
        self._infos = {name: self._describe(name) for name in self._scales}
        unused = {*self._scales, *self._scales.values()}
        self._others = tuple(name for name in stored.names if name not in unused and not name.endswith(_INPUT_SCALES))

    def _weight(self, name: str) -> QuantizedWeight:
        codes = np.asarray(self._stored.array(name))
        scales = np.asarray(self._stored.array(self._scales[name]))
        scales = exponents(scales.view(np.uint8)) if scales.dtype.itemsize == 1 else scales.astype(np.float32)
        # The two codes of NaN have all bits of the magnitude set.
        if not np.isfinite(scales).all() or ((codes.view(np.uint8) & 0x7F) == 0x7F).any():
            raise CheckpointError(f"{self._where} has {name} with values that are not finite. Fetch the weights again.")
        rows = codes.shape[0]
        if not self._is_in_blocks(name):
            of_rows = np.ascontiguousarray(np.broadcast_to(scales.reshape(-1, 1), (rows, 1)))
            return QuantizedWeight(FP8, codes, of_rows)
        n, k = self._blocks(codes.shape, scales.shape)
        return QuantizedWeight(fp8_in_blocks(k), codes, np.repeat(scales, n, axis=0)[:rows])

    def _has_codes(self, name: str) -> bool:
        return name.endswith(_WEIGHT) and self._stored.info(name).dtype_name == _CODES

    def _scale_name(self, name: str, names: frozenset[str]) -> str:
        module = name.removesuffix(_WEIGHT)
        found = [f"{module}{suffix}" for suffix in _SCALES if f"{module}{suffix}" in names]
        if len(found) != 1:
            raise CheckpointError(
                f"{self._where} has {name} in float8_e4m3fn with {' and '.join(found) or 'no scales'}, where one of "
                f"{' and '.join(module + suffix for suffix in _SCALES)} is expected. Fetch the weights again."
            )
        return found[0]

    def _is_in_blocks(self, name: str) -> bool:
        """Whether scales are those of blocks: neither one number nor one for each row."""
        rows = self._stored.info(name).shape[0]
        return self._stored.info(self._scales[name]).shape not in ((), (1,), (1, 1), (rows,), (rows, 1))

    def _blocks(self, shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, int]:
        """The size of blocks: the one of the config, or parts of a row of equal size."""
        if self._block_size is not None or len(scales) != 2:
            return self._block_size or (1, 1)
        return 1, max(shape[1] // max(scales[1], 1), 1)

    def _describe(self, name: str) -> TensorInfo:
        info, scales = self._stored.info(name), self._stored.info(self._scales[name])
        is_matrix = len(info.shape) == 2
        is_expected = is_matrix and scales.dtype_name in _FLOATS
        format: WeightFormat = FP8
        if is_expected and self._is_in_blocks(name):
            n, k = self._blocks(info.shape, scales.shape)
            is_expected = scales.shape == (-(-info.shape[0] // n), -(-info.shape[1] // k))
            format = fp8_in_blocks(k)
        if not is_expected:
            raise CheckpointError(
                f"{self._where} has {name} {list(info.shape)} in float8_e4m3fn with scales of {scales.dtype_name} "
                f"{list(scales.shape)}, which quantization_config does not describe. Check that it belongs to the "
                "weights."
            )
        return TensorInfo("fp8", info.shape, 0, info.num_bytes + scales.num_bytes, format)
