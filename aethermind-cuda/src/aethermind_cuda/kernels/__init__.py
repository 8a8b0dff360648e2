"""The kernels of this device: every module here has some in its `KERNELS`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from aethermind.dispatch import Kernel

__all__ = ["load_kernels"]


def load_kernels() -> list[Kernel]:
    """All of them, by the names of their modules. Modules beginning with an underscore are for the others."""
    names = sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_"))
    return [kernel for name in names for kernel in import_module(f"{__name__}.{name}").KERNELS]
