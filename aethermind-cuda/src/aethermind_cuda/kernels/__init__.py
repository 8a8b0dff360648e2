"""The CUDA kernels: each module lists its own in `KERNELS`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from aethermind.dispatch import Kernel

__all__ = ["load_kernels"]


def load_kernels() -> list[Kernel]:
    """Collect the kernels of all modules, in the order of module names. Modules with a leading underscore have none."""
    names = sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_"))
    return [kernel for name in names for kernel in import_module(f"{__name__}.{name}").KERNELS]
