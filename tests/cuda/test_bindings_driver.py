"""The real driver's calls reach libcuda with the arguments that its C interface wants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.architecture.sources import ROOT

from aethermind_cuda.driver import CudaError, Driver

STUB = Path(__file__).parent / "stub"


def test_every_call_reaches_libcuda_with_its_signature(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run(["cc", *options, str(STUB / "libcuda.c"), "-ldl"], check=True)
    paths = [str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    result = subprocess.run(
        [sys.executable, str(STUB / "calls.py")],
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    num_calls = sum(not name.startswith("_") and callable(value) for name, value in vars(Driver).items())
    assert result.stdout == f"{num_calls} calls\n"


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (2, "Lower --num-kv-blocks"),
        (100, "CUDA_VISIBLE_DEVICES"),
        (700, "Start again"),
        (803, "update the NVIDIA"),
    ],
)
def test_errors_state_the_remedy(code: int, advice: str) -> None:
    message = str(CudaError("cuCall", code, "CUDA_ERROR_NAME", "text of the driver"))
    assert message.startswith(f"cuCall failed: text of the driver (CUDA_ERROR_NAME, {code}). ")
    assert advice in message
