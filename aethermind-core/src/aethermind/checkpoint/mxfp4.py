"""Checkpoints of gpt-oss with experts in mxfp4: two tensors of bytes for each weight.

A weight `X` of experts [E, N, K] is stored as `X_blocks`, uint8 [E, N, K / 32, 16], with two codes in a byte, the first
in its low bits, and `X_scales`, uint8 [E, N, K / 32] (`ops.mxfp4` has the codes).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import QuantizedTensors
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.ops.mxfp4 import check_scales
from aethermind.ops.weight_format import MXFP4, QuantizedWeight

__all__ = ["Mxfp4Checkpoint"]

Array = npt.NDArray[Any]

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16


class Mxfp4Checkpoint(QuantizedTensors):
    """A checkpoint whose weights in mxfp4 are tensors `X`, described as [E, N, K] and read as QuantizedWeights
    [E · N, K]; implements `StoredTensors`. Immutable.
    """

    def __init__(self, stored: StoredTensors, where: str) -> None:
        """Check that blocks and scales fit together; `where` names the model in messages.

        Raises:
            CheckpointError: there are no blocks, or blocks without scales of their shape.
        """
        self._stored = stored
        self._where = where
        self._infos = {
            name.removesuffix(_BLOCKS): self._describe(name.removesuffix(_BLOCKS))
            for name in stored.names
            if name.endswith(_BLOCKS)
        }
        if not self._infos:
            raise CheckpointError(
                f"{where} says that it is quantised by mxfp4, and has no tensor *{_BLOCKS}. Take quantization_config "
                "out of config.json if its weights are not quantised."
            )
        parts = {f"{name}{part}" for name in self._infos for part in (_BLOCKS, _SCALES)}
        self._others = tuple(name for name in stored.names if name not in parts)

    def array(self, name: str) -> Array | QuantizedWeight:
        """A tensor's values, a QuantizedWeight for weights in mxfp4.

        Raises CheckpointError for an unknown name, and for scales that are no numbers.
        """
        info = self._infos.get(name)
        if info is None:
            return self._stored.array(name)
        rows, columns = prod(info.shape[:-1]), info.shape[-1]
        packed, scales = (np.asarray(self._stored.array(f"{name}{part}")) for part in (_BLOCKS, _SCALES))
        codes = np.empty((rows, columns), np.uint8)
        stored = packed.reshape(rows, columns // 2)
        np.bitwise_and(stored, 15, out=codes[:, ::2])
        np.right_shift(stored, 4, out=codes[:, 1::2])
        drop_mapped_pages(packed)
        try:
            check_scales(scales)
        except InvalidArgumentError as error:
            raise CheckpointError(f"{self._where}: {name}{_SCALES}: {error} Fetch the weights again.") from None
        return QuantizedWeight(MXFP4, codes, scales.reshape(rows, -1))

    def _describe(self, name: str) -> TensorInfo:
        blocks = self._stored.info(f"{name}{_BLOCKS}")
        scales = self._stored.info(f"{name}{_SCALES}")
        are_bytes = blocks.dtype_name == scales.dtype_name == "U8"
        if not are_bytes or len(blocks.shape) < 3 or blocks.shape != (*scales.shape, _BLOCK_BYTES):
            raise CheckpointError(
                f"{self._where} has {name}{_BLOCKS} of {blocks.dtype_name} {list(blocks.shape)} with {_SCALES} of "
                f"{scales.dtype_name} {list(scales.shape)}: mxfp4 has bytes, {_BLOCK_BYTES} of codes for each scale."
            )
        *rows, num_blocks = scales.shape
        return TensorInfo("mxfp4", (*rows, num_blocks * MXFP4.block), 0, blocks.num_bytes + scales.num_bytes, MXFP4)
