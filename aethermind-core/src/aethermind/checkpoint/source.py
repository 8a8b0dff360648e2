"""What a loader may ask of any set of weights, wherever they come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aethermind.ops.weight_format import QuantizedWeight, WeightFormat

__all__ = ["StoredTensors", "TensorFile", "TensorInfo", "TensorSource", "dtype_names"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor before its values are touched.

    Attributes:
        dtype_name: the safetensors name of its dtype, a key of `dtype_names()`: `"BF16"`; of a quantised tensor, what
            its file calls the way it is stored: `"Q4_K"`, `"gptq"`.
        shape: its dimensions, outermost first; `()` for a scalar.
        begin, end: the bytes it takes, counted from the start of its file's data section; 0 and its size in
            bytes for tensors that are not in one piece of a file.
        weight_format: the format of the QuantizedWeight that the tensor is read as; None for plain values.
    """

    dtype_name: str
    shape: tuple[int, ...]
    begin: int
    end: int
    weight_format: WeightFormat | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the values in bytes."""
        return self.end - self.begin

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of plain values."""
        return dtype_names()[self.dtype_name]

    @property
    def kind(self) -> str:
        """What the values are, for people: NumPy's name of the dtype, or the file's own of a way to quantise."""
        return self.dtype_name if self.weight_format else str(self.dtype)


class TensorSource(Protocol):
    """A set of named tensors: a checkpoint on disk, or one made up."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the source's own order."""
        ...

    @property
    def total_bytes(self) -> int:
        """Size of all values together."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        ...

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """Return a tensor's values as a read-only array, those of a quantised one as they are stored.

        Raises CheckpointError for an unknown name.
        """
        ...


class TensorFile(TensorSource, Protocol):
    """A set of named tensors in one file, none of them quantised."""

    path: Path

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values as a read-only array. Raises CheckpointError for an unknown name."""
        ...


class StoredTensors(TensorSource, Protocol):
    """A set of named tensors in files."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        ...

    @property
    def neutral_names(self) -> tuple[str, ...]:
        """Tensors that change nothing, which a model need not want: the biases of zeros that some tools add."""
        ...


@cache
def dtype_names() -> dict[str, np.dtype[Any]]:
    """NumPy's dtype for each dtype name that may stand in a safetensors file, little-endian."""
    import ml_dtypes

    return {
        "BOOL": np.dtype(np.bool_),
        "U8": np.dtype("<u1"),
        "U16": np.dtype("<u2"),
        "U32": np.dtype("<u4"),
        "U64": np.dtype("<u8"),
        "I8": np.dtype("<i1"),
        "I16": np.dtype("<i2"),
        "I32": np.dtype("<i4"),
        "I64": np.dtype("<i8"),
        "F16": np.dtype("<f2"),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F32": np.dtype("<f4"),
        "F64": np.dtype("<f8"),
        "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    }
