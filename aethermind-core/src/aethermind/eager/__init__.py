"""Eager execution: operators called one at a time on arrays, such as `eager.rms_norm(x, weight, eps=1e-6)`.

    from aethermind import eager

    y = eager.silu(x)                              # NumPy in, NumPy out; torch in, torch out
    y = eager.Eager(device="numpy").silu(x)        # another device; cuda uploads and downloads
    packed = eager.pack("linear", "weight", w)     # for repeated calls: eager.linear(x, packed)

Every operator of the catalog and of plugins is a function here; `aethermind ops` lists them. Arrays in host memory are
computed on the `cpu` device, or on `numpy` where `cpu` is not installed; those in the memory of a device there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aethermind.eager.session import Eager

__all__ = ["Eager"]


@cache
def _default() -> Eager:
    return Eager()


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_default())})


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_default(), name)
