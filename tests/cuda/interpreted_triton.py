"""csrc/triton on Triton's interpreter: programs run one after the other, over NumPy, each operation by itself.

Triton's interpreter must be enabled before its import, so it runs in a separate process.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.architecture.sources import ROOT

from aethermind.ops.operator import Array

__all__ = ["Interpreter", "interpreter"]

SOURCES = ROOT / "aethermind-cuda" / "csrc" / "triton"


class Interpreter:
    """Runs kernels in the process of `pool`."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(
        self, name: str, grid: tuple[int, int, int], arguments: Sequence[Any], constants: Mapping[str, Any]
    ) -> list[Any]:
        """Run the function `name` of csrc/triton/<name>.py over arrays and numbers, in the order of its parameters.

        Returns them as they are then. Arrays of uint16 hold bfloat16.
        """
        return self._pool.submit(_run, name, grid, list(arguments), dict(constants)).result()


@contextmanager
def interpreter() -> Iterator[Interpreter]:
    """A process that has its Triton interpret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield Interpreter(pool)


def _run(name: str, grid: tuple[int, int, int], arguments: list[Any], constants: dict[str, Any]) -> list[Any]:
    _mend_triton()
    spec = importlib.util.spec_from_file_location(name, SOURCES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tensors = [_tensor(one) if isinstance(one, np.ndarray) else one for one in arguments]
    getattr(module, name)[grid](*tensors, **constants)
    return arguments


def _tensor(array: Array) -> Any:
    """One that shares the array's memory."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def _mend_triton() -> None:
    """Triton 3.6 takes int() of arrays of one element, which NumPy 2.4 refuses, and multiplies bfloat16 as integers."""
    import triton.language as tl
    import triton.runtime.interpreter as triton

    def patch_tensors(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return triton.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    patch, dot = triton._patch_lang_tensor, triton.InterpreterBuilder.create_dot
    if patch.__module__ == triton.__name__:
        triton._patch_lang_tensor = patch_tensors
        triton.InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
