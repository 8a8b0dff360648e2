"""Element types, with the names of NumPy and torch."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DType"]


class DType(Enum):
    """An element type: its name, its number in the native kernel ABI (`am_dtype`), and its size in bytes."""

    FLOAT32 = ("float32", 0, 4)
    FLOAT16 = ("float16", 1, 2)
    BFLOAT16 = ("bfloat16", 2, 2)
    FLOAT64 = ("float64", 3, 8)
    INT8 = ("int8", 4, 1)
    UINT8 = ("uint8", 5, 1)
    INT32 = ("int32", 6, 4)
    INT64 = ("int64", 7, 8)
    BOOL = ("bool", 8, 1)
    FLOAT8_E4M3FN = ("float8_e4m3fn", 9, 1)

    def __init__(self, label: str, code: int, itemsize: int) -> None:
        self.label = label
        self.code = code
        self.itemsize = itemsize

    def __str__(self) -> str:
        return self.label

    @property
    def is_floating(self) -> bool:
        """Whether operators compute in this type. They do not in float8, whose values are quantised and have scales."""
        return self.code <= DType.FLOAT64.code

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of the same layout (of `ml_dtypes` for bfloat16 and float8)."""
        import numpy as np

        if self in (DType.BFLOAT16, DType.FLOAT8_E4M3FN):
            import ml_dtypes

            narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.label))
            return narrow
        return np.dtype(self.label)

    @classmethod
    def parse(cls, name: str) -> DType:
        """Parse `float32`, `bfloat16`, … or a short form such as `bf16` or `half`; else InvalidArgumentError."""
        wanted = _SHORT_FORMS.get(name, name)
        for dtype in cls:
            if dtype.label == wanted:
                return dtype
        known = ", ".join(dtype.label for dtype in cls)
        raise InvalidArgumentError(f"Unknown dtype {name!r}. Known: {known}.")

    @classmethod
    def of_numpy(cls, dtype: np.dtype[Any]) -> DType:
        """Return the element type of a NumPy dtype; InvalidArgumentError where there is none in native byte order."""
        if not dtype.isnative:
            raise InvalidArgumentError(f"Arrays of dtype {dtype.str} are not in native byte order; convert them first.")
        return cls.parse(dtype.name)


_SHORT_FORMS = {
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
}
