"""Step two: a kernel for one device, which writes to the output array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aethermind.dispatch import Kernel
from aethermind.hal import DType
from aethermind_geglu.page import gelu

__all__ = ["KERNELS"]


def _geglu(inputs: Sequence[Any], outputs: Sequence[Any], _: Mapping[str, Any]) -> None:
    gate, up = (array.astype(np.float32, copy=False) for array in inputs)
    outputs[0][...] = gelu(gate) * up


KERNELS = [
    Kernel(
        "geglu",
        "numpy",
        "numpy geglu",
        frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16}),
        function=_geglu,
        is_batch_invariant=True,
    )
]
