"""Kernels compiled from one file of C++ by the system's compiler, as a package outside would offer them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from tests.cpu.native_kernel import AmKernel, capsule_of

import aethermind
from aethermind.dispatch import Kernel
from aethermind.hal import DType

__all__ = ["native_kernels"]

_PRIORITY = 90


def native_kernels(source: str, folder: Path) -> Sequence[Kernel]:
    """The kernels of a source, compiled into a folder unless they are there."""
    library = ctypes.CDLL(str(_compiled(source, folder)))
    return [
        Kernel(
            struct.name.decode().partition("/")[0],
            "cpu",
            "planted-native",
            frozenset({DType.FLOAT32}),
            _PRIORITY,
            native=capsule_of(struct),
            is_batch_invariant=True,
        )
        for struct in _structs(library)
    ]


def _structs(library: ctypes.CDLL) -> Iterator[AmKernel]:
    library.planted_kernel.restype = ctypes.POINTER(AmKernel)
    library.planted_kernel.argtypes = (ctypes.c_size_t,)
    index = 0
    while found := library.planted_kernel(index):
        yield found.contents
        index += 1


def _compiled(source: str, folder: Path) -> Path:
    name = f"planted-{sha256(source.encode()).hexdigest()[:16]}"
    path, text = folder / f"{name}.so", folder / f"{name}.{os.getpid()}.cpp"
    if not path.exists():
        text.write_text(source, encoding="utf-8")
        made = text.with_suffix(".so")
        include = Path(aethermind.__path__[0]) / "include"
        command = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared", f"-I{include}", str(text), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.rename(path)
    return path
