"""What is checked on a GPU, the most telling first."""

from __future__ import annotations

import ctypes
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tests.cuda.check.running import Step

from aethermind import testing
from aethermind_cuda.library import Cubins
from aethermind_cuda.probe import capability_of_first, probe

__all__ = ["describe_machine", "reason_against_machine", "steps"]

_ROOT = Path(__file__).parents[3]
_NEEDS_TORCH = "it needs torch and transformers, which are not installed"


def reason_against_machine() -> str | None:
    """Why nothing can be checked here; that kernels are not compiled yet is no reason."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return probe().reason
    return None if capability_of_first(driver) else probe().reason


def describe_machine() -> dict[str, str]:
    """Card, driver, and the libraries that are compared with."""
    from aethermind_cuda.bindings_driver import load_driver

    driver = load_driver()
    spoken = ".".join(map(str, driver.version()))
    card = f"{driver.device_name(0)}, {driver.device_memory(0) / 2**30:.0f} GiB"
    return {"card": card, "driver": f"{_driver_release()}, CUDA {spoken}", "torch": _version("torch")}


def steps(log: Path) -> list[Step]:
    """All of them; those that need what is not here say so."""
    target = _target()
    has_kernels = Cubins().reason_against(_capability()) is None
    sanitizer = shutil.which("compute-sanitizer")
    against_torch = None if find_spec("torch") and find_spec("transformers") else _NEEDS_TORCH
    against_sanitizer = None if sanitizer else "compute-sanitizer is not installed"
    compile_kernels = ["aethermind-cuda/build_kernels.py", "--targets", target, "--jobs", "16"]
    found = [
        Step("compile kernels", _python(*compile_kernels), 180, "they are compiled" if has_kernels else None),
        Step("conform: hal", _conform("hal"), 40),
        Step("conform: operators", _conform("operators"), 90),
        Step("conform: models", _conform("models"), 60),
        Step("hardware tests", _pytest("tests/cuda/hardware", "-k", "not parity and not ragged"), 60),
        Step("parity with transformers", _pytest("tests/cuda/hardware", "-k", "parity"), 90, against_torch),
        Step("1000 ragged batches", _pytest("tests/cuda/hardware", "-k", "ragged"), 60),
        Step("figures", _python("-m", "tests.cuda.check.figures"), 100),
        Step("figures: transformers", _python("-m", "tests.cuda.check.transformers_figures"), 120, against_torch),
    ]
    for tool in ("memcheck", "racecheck"):
        command = [str(sanitizer), f"--tool={tool}", "--error-exitcode=9", *_pytest_of_kernels(log)]
        found.append(Step(tool, command, 90, against_sanitizer))
    return found


def _python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def _pytest(*arguments: str) -> list[str]:
    return _python("-m", "pytest", "-q", "--confcutdir=tests/cuda/hardware", "-m", "cuda", *arguments)


def _conform(suite: str) -> list[str]:
    return _python("-m", "aethermind", "conform", "cuda", "--suite", suite)


def _pytest_of_kernels(log: Path) -> list[str]:
    """A few samples of every operator, in the process that the sanitizer watches."""
    suite = Path(testing.__file__).parent / "suites" / "test_operators.py"
    report = str(log / "sanitized.jsonl")
    options = ["--backend", "cuda", "--conformance-report", report, "-q", "-k", "bfloat16", "-x"]
    return _python("-m", "aethermind.testing", str(suite), *options)


def _capability() -> tuple[int, int]:
    capability = capability_of_first(ctypes.CDLL("libcuda.so.1"))
    assert capability is not None, "there is no GPU"
    return capability


def _target() -> str:
    major, minor = _capability()
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
