"""`linear` and `lm_head` with ternary weights, five per byte."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aethermind.dispatch import Kernel, Pack
from aethermind.hal import DType
from aethermind.ops.weight_format import QuantizedWeight
from aethermind_ternary.format import PER_BYTE, TERNARY

__all__ = ["KERNELS"]

_POWERS = 3 ** np.arange(PER_BYTE, dtype=np.uint8)


def _pack(source: Any, address: int) -> None:
    """Pack the digits of all rows, then their scales."""
    weight = source if isinstance(source, QuantizedWeight) else TERNARY.quantize(source)
    rows, columns = weight.shape
    digits = np.ones((rows, -(-columns // PER_BYTE) * PER_BYTE), np.uint8)
    digits[:, :columns] = weight.codes + 1
    packed = (digits.reshape(rows, -1, PER_BYTE) * _POWERS).sum(axis=-1, dtype=np.uint8)
    content = packed.tobytes() + weight.scales.tobytes()
    ctypes.memmove(address, content, len(content))


def _unpacked(packed: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """Unpack codes, float32 [N, K], and scales, float32 [N]."""
    end = rows * -(-columns // PER_BYTE)
    digits = packed[:end].reshape(rows, -1, 1) // _POWERS % 3
    codes = digits.reshape(rows, -1)[:, :columns].astype(np.float32) - 1
    return codes, packed[end:].view(np.float16).astype(np.float32)


def _linear(inputs: Sequence[Any], outputs: Sequence[Any], _: Mapping[str, Any]) -> None:
    """Additions and subtractions, then one multiplication per output."""
    x, packed, *bias = inputs
    codes, scales = _unpacked(packed, outputs[0].shape[1], x.shape[1])
    result = x.astype(np.float32) @ codes.T * scales
    outputs[0][...] = result if not bias or bias[0] is None else result + bias[0]


_PACK = Pack("ternary five a byte", lambda shape, _: TERNARY.nbytes(shape), _pack, TERNARY.name)
_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
KERNELS = [
    Kernel(
        operator,
        "numpy",
        f"ternary {operator}",
        _DTYPES,
        priority=10,
        function=_linear,
        packs={"weight": _PACK},
        weight_formats=frozenset({TERNARY.name}),
        is_batch_invariant=False,
    )
    for operator in ("linear", "lm_head")
]
