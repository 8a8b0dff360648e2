"""Eager execution: operators called one at a time on arrays, such as `eager.rms_norm(x, weight, eps=1e-6)`.

    from aethermind import eager

    y = eager.silu(x)                              # NumPy in, NumPy out; torch in, torch out
    y = eager.Eager(device="numpy").silu(x)        # another device; cuda uploads and downloads
    packed = eager.pack("linear", "weight", w)     # for repeated calls: eager.linear(x, packed)

Every operator of the catalog and of plugins is a function here; `aethermind ops` lists them. Calls with arrays in host
memory run on the device `cpu`, or on `numpy` if `cpu` is not installed; calls with arrays in the memory of another
device run on that device.
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
