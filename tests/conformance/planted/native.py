"""Kernels compiled from one file of C++ by the system's compiler, as a package outside would offer them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aethermind.dispatch import Kernel

__all__ = ["native_kernels"]


def native_kernels(source: str, folder: Path) -> Sequence[Kernel]:
    return []
