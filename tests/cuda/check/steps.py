"""What is checked on a GPU, the most telling first."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tests.cuda.check.qwen2_7b import BATCHES
from tests.cuda.check.running import Step

from aethermind import testing
from aethermind_cuda.cublas import find_cublaslt
from aethermind_cuda.library import Cubins
from aethermind_cuda.probe import capability_of_first, probe_driver

__all__ = ["describe_machine", "reason_against_machine", "sanitizing_steps", "steps"]

_ROOT = Path(__file__).parents[3]
_NEEDS_TORCH = "it needs torch and transformers, which are not installed"


def reason_against_machine() -> str | None:
    """Why nothing can be checked here; that kernels are not compiled yet is no reason."""
    answer = probe_driver()
    return None if answer.is_available else answer.reason


def describe_machine() -> dict[str, str]:
    """Card, driver, and the libraries that are used and compared with."""
    from aethermind_cuda.bindings_driver import load_driver

    driver = load_driver()
    spoken = ".".join(map(str, driver.version()))
    card = f"{driver.device_name(0)}, {driver.device_memory(0) / 2**30:.0f} GiB"
    return {
        "card": card,
        "driver": f"{_driver_release()}, CUDA {spoken}",
        "kernels": f"sm_{_target()}",
        "cublasLt": "found" if find_cublaslt() else "not installed",
        "torch": _version("torch"),
    }


def steps(log: Path) -> list[Step]:
    """All of them; those that need what is not here say so."""
    target = _target()
    against_torch = None if find_spec("torch") and find_spec("transformers") else _NEEDS_TORCH
    compile_kernels = ["aethermind-cuda/build_kernels.py", "--targets", target, "--jobs", "16"]
    hardware, figures = "tests/cuda/hardware", ("-m", "tests.cuda.check.figures")
    return [
        Step("compile kernels", _python(*compile_kernels), 150, _reason_to_keep_kernels(), least_s=30, is_needed=True),
        Step("conform: hal", _conform("hal"), 40, least_s=5),
        Step("conform: operators", _conform("operators"), 90, least_s=40),
        Step("conform: models", _conform("models"), 60, least_s=20),
        Step("hardware tests", _pytest(hardware, "-k", "not parity and not ragged"), 60, least_s=30),
        Step("parity with transformers", _pytest(hardware, "-k", "parity"), 90, against_torch, least_s=40),
        Step("1000 ragged batches", _pytest(hardware, "-k", "ragged"), 60, least_s=30),
        *(Step(f"figures: batch {batch}", _python(*figures, str(batch)), 45, least_s=20) for batch in BATCHES),
        Step(
            "figures: transformers",
            _python("-m", "tests.cuda.check.transformers_figures"),
            120,
            against_torch,
            least_s=60,
        ),
        *sanitizing_steps(log, 60, least_s=20, chosen=("-k", "bfloat16", "-x")),
    ]


def sanitizing_steps(log: Path, limit_s: float, *, least_s: float = 5, chosen: Sequence[str] = ()) -> list[Step]:
    """compute-sanitizer over samples of all operators, or those `chosen`: stray access, and races for shared memory."""
    sanitizer = shutil.which("compute-sanitizer")
    reason = None if sanitizer else "compute-sanitizer, which comes with the CUDA toolkit, is not on PATH"
    suite = Path(testing.__file__).parent / "suites" / "test_operators.py"
    options = ["--backend", "cuda", "--conformance-report", str(log / "sanitized.jsonl"), "-q", *chosen]
    watched = _python("-m", "aethermind.testing", str(suite), *options)
    return [
        Step(tool, [str(sanitizer), f"--tool={tool}", "--error-exitcode=9", *watched], limit_s, reason, least_s=least_s)
        for tool in ("memcheck", "racecheck")
    ]


def _reason_to_keep_kernels() -> str | None:
    """Why kernels that are there are taken as they are. A compiler knows which of them are fresh."""
    has_compiler = shutil.which("nvcc") or find_spec("nvidia.cu13") or os.environ.get("CUDA_HOME")
    has_kernels = Cubins().reason_against(capability_of_first()) is None
    return "they were compiled elsewhere, and there is no nvcc" if has_kernels and not has_compiler else None


def _python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def _pytest(*arguments: str) -> list[str]:
    return _python("-m", "pytest", "-q", "--confcutdir=tests/cuda/hardware", "-m", "cuda", *arguments)


def _conform(suite: str) -> list[str]:
    return _python("-m", "aethermind", "conform", "cuda", "--suite", suite)


def _target() -> str:
    major, minor = capability_of_first()
    return {(9, 0): "90a", (10, 0): "100f", (10, 3): "100f"}.get((major, minor), f"{major}{minor}")


def _driver_release() -> str:
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split() if path.is_file() else []
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), "driver of unknown release")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
