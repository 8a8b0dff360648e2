"""Dummy weights: random-looking values of any shapes, available immediately for any size of model.

Random numbers for billions of parameters would take minutes, and benchmarks need values of the right magnitude, not
independent ones. So one block of random values is repeated in a single buffer, a block longer than the largest tensor,
and every tensor is a view of it at an offset derived from its name. The cost is one pass over the largest tensor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.source import TensorInfo, dtype_names
from aethermind.errors import CheckpointError, InvalidArgumentError

__all__ = ["DummyCheckpoint", "buffer_bytes"]

# A prime, so that the rows of a matrix begin at different offsets of the block for every hidden size.
_BLOCK_VALUES = 1_048_573
# Views begin at multiples of 64 values, so that they are cache-line aligned if the buffer is.
_STEP_VALUES = 64


class DummyCheckpoint:
    """Weights of any shapes, the same for the same seed; implements `TensorSource`.

    Values are normal with mean 0 and deviation `std`, except that one-dimensional tensors whose names end in
    `norm.weight` are 1. The others share one buffer, a block longer than the largest tensor, which is allocated at the
    first access.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: np.dtype[Any] | str,
        seed: int = 0,
        std: float = 0.02,
    ) -> None:
        """Describe the weights; nothing is computed yet.

        Args:
            shapes: name to shape.
            dtype: a floating-point dtype, or its name (`"bfloat16"`).
            seed: the seed of the random values.
            std: standard deviation of the values.

        Raises:
            InvalidArgumentError: the dtype is not a floating-point dtype of safetensors.
        """
        self._dtype, dtype_name = _floating_dtype(dtype)
        self._seed = seed
        self._std = std
        self._infos = {
            name: TensorInfo(dtype_name, tuple(shape), 0, math.prod(shape) * self._dtype.itemsize)
            for name, shape in shapes.items()
        }
        self._buffer: npt.NDArray[Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order of `shapes`."""
        return tuple(self._infos)

    @property
    def total_bytes(self) -> int:
        """Size of all values together, as if they were stored."""
        return sum(info.num_bytes for info in self._infos.values())

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        info = self._infos.get(name)
        if info is None:
            raise CheckpointError(f"The dummy checkpoint has no tensor {name!r} among its {len(self._infos)}.")
        return info

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values, read-only. Raises CheckpointError for an unknown name."""
        info = self.info(name)
        if _is_norm_weight(name, info.shape):
            ones = np.ones(info.shape, self._dtype)
            ones.flags.writeable = False
            return ones
        if self._buffer is None:
            self._buffer = self._make_buffer()
        block_step = zlib.crc32(name.encode(), self._seed & 0xFFFFFFFF) % (_BLOCK_VALUES // _STEP_VALUES)
        begin = block_step * _STEP_VALUES
        return self._buffer[begin : begin + math.prod(info.shape)].reshape(info.shape)

    def _make_buffer(self) -> npt.NDArray[Any]:
        block = np.random.default_rng(self._seed).standard_normal(_BLOCK_VALUES, np.float32)
        block *= np.float32(self._std)
        shapes = {name: info.shape for name, info in self._infos.items()}
        buffer = np.resize(block.astype(self._dtype), _longest(shapes) + _BLOCK_VALUES)
        buffer.flags.writeable = False
        return buffer


def buffer_bytes(shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]) -> int:
    """The bytes that a checkpoint of these shapes takes while it is open, once a tensor has been read."""
    num_blocks = -(-(_longest(shapes) + _BLOCK_VALUES) // _BLOCK_VALUES)  # numpy.resize repeats whole blocks
    return num_blocks * _BLOCK_VALUES * dtype.itemsize


def _longest(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The number of values of the largest tensor that is not the weight of a norm."""
    return max(math.prod(shape) for name, shape in shapes.items() if not _is_norm_weight(name, shape))


def _is_norm_weight(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 and name.endswith("norm.weight")


def _floating_dtype(dtype: np.dtype[Any] | str) -> tuple[np.dtype[Any], str]:
    floating = {known: name for name, known in dtype_names().items() if "F" in name}
    try:
        chosen = np.dtype(dtype)
    except TypeError:
        chosen = None
    if chosen not in floating:
        names = ", ".join(str(known) for known in floating)
        raise InvalidArgumentError(f"Dummy weights cannot have dtype {dtype}; choose one of {names}.")
    return chosen, floating[chosen]
