"""The interfaces of sets of named tensors, and the check that a set has exactly the tensors of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat

__all__ = ["StoredTensors", "TensorFile", "TensorInfo", "TensorSource", "dtype_names", "match_names"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The description of a tensor, without its values.

    Attributes:
        dtype_name: the safetensors name of its dtype, a key of `dtype_names()`: `"BF16"`; for a quantised tensor, its
            file's name of the quantisation: `"Q4_K"`, `"gptq"`.
        shape: its dimensions, outermost first; `()` for a scalar.
        begin, end: its bytes, counted from the start of its file's data section; 0 and its size in bytes for tensors
            that are not contiguous in a file.
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
        """The kind of values for display: NumPy's name of the dtype, or the file's name of the quantisation."""
        return self.dtype_name if self.weight_format else str(self.dtype)


class TensorSource(Protocol):
    """A set of named tensors: a checkpoint on disk, or dummy weights."""

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
        """Return a tensor's values as a read-only array, or a quantised tensor in its stored format.

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
    def zero_bias_names(self) -> tuple[str, ...]:
        """Biases of zeros, which some tools add to modules without a bias; they have no effect and are ignored."""
        ...


@cache
def dtype_names() -> dict[str, np.dtype[Any]]:
    """The NumPy dtype of each dtype name of safetensors files, little-endian."""
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
        "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    }


_MAX_LISTED = 5
_PACKED = ".qweight"


def match_names(
    expected: Mapping[str, tuple[int, ...]],
    checkpoint: TensorSource,
    *,
    ignore: Sequence[str] = (),
) -> dict[str, TensorInfo]:
    """Check that a checkpoint has exactly the expected tensors, and return their descriptions in that order.

    Args:
        expected: the model's parameters, name to shape.
        checkpoint: the weights.
        ignore: shell patterns of further names that the checkpoint may have:
            `"lm_head.weight"` of a model with tied embeddings, `"*.rotary_emb.inv_freq"`.

    Raises:
        CheckpointError: names are missing or unexpected, or shapes differ; lists up to five of each kind.
    """
    found = {name: checkpoint.info(name) for name in checkpoint.names}
    missing = [f"{name} {_shape(shape)}" for name, shape in expected.items() if name not in found]
    unexpected = [
        f"{name} {_shape(info.shape)}"
        for name, info in found.items()
        if name not in expected and not any(fnmatchcase(name, pattern) for pattern in ignore)
    ]
    misshapen = [
        f"{name} {_shape(found[name].shape)} instead of {_shape(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != tuple(shape)
    ]
    problems = [
        f"{len(items)} {kind} ({_listing(items)})"
        for kind, items in (("missing", missing), ("misshapen", misshapen), ("unexpected", unexpected))
        if items
    ]
    if problems:
        advice = "Check that config.json and the weights belong to the same model."
        if any(name.endswith(_PACKED) for name in found if name not in expected):
            advice = (
                f"Tensors *{_PACKED} are of GPTQ or AWQ: quantization_config in config.json, quantize_config.json or "
                "quant_config.json has to say how they are packed. Fetch that file, too."
            )
        raise CheckpointError(
            f"The checkpoint does not fit the model: of {len(expected)} expected tensors and {len(found)} found, "
            f"{'; '.join(problems)}. {advice}"
        )
    return {name: found[name] for name in expected}


def _listing(items: Sequence[str]) -> str:
    """The first items, and how many more there are."""
    rest = len(items) - _MAX_LISTED
    return ", ".join(items[:_MAX_LISTED]) + (f", and {rest} more" if rest > 0 else "")


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
