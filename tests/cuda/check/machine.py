"""What machine this is: card, driver, tools on PATH, versions of what is compared with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aethermind_cuda.cublas import find_cublaslt
from aethermind_cuda.library import Cubins
from aethermind_cuda.probe import capability_of_first
from aethermind_cuda.targets import best_target

__all__ = ["cuda_bin", "describe_machine", "find_tool", "target"]

_PACKAGES = ("torch", "triton", "transformers", "numpy", "cuda-bindings", "nvidia-cublas", "pytest", "pytest-xdist",
             "pytest-timeout", "pydantic")  # fmt: skip
_TOOLS = ("git", "nvcc", "compute-sanitizer", "ncu", "nvidia-smi", "cuobjdump")


def describe_machine() -> dict[str, str]:
    """Card, driver, and the libraries that are used and compared with."""
    from aethermind_cuda.cuda_bindings_driver import load_driver

    driver = load_driver()
    spoken = ".".join(map(str, driver.version()))
    manifest = Cubins().manifest
    return {
        "card": f"{driver.device_name(0)}, {driver.device_memory(0) / 2**30:.0f} GiB",
        "driver": f"{_driver_release()}, CUDA {spoken}",
        "kernels": f"sm_{target()}, by nvcc {manifest.get('compiler', 'unknown')}",
        "cublasLt": "found" if find_cublaslt() else "not installed",
        "torch": package_version("torch"),
    }


def target() -> str:
    """The target of `build_kernels.py` that the first GPU runs."""
    major, minor = capability_of_first()
    known = ("80", "86", "89", "90a", "100f", "120")
    return best_target(known, (major, minor)) or f"{major}{minor}"


def cuda_bin() -> Path:
    """Where a CUDA toolkit keeps its tools, on PATH or not."""
    return Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"


def find_tool(name: str) -> str | None:
    """A tool of CUDA's by its path."""
    return shutil.which(name) or shutil.which(name, path=str(cuda_bin()))


def package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _driver_release() -> str:
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split() if path.is_file() else []
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), "driver of unknown release")


def main() -> None:
    """Print it all."""
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    print(", ".join(f"{name} {package_version(name)}" for name in _PACKAGES))
    print(", ".join(f"{name} {find_tool(name) or 'missing'}" for name in _TOOLS))
    smi = find_tool("nvidia-smi")
    if smi is not None:
        asked = "name,driver_version,memory.total,memory.free,clocks.sm,clocks.max.sm,clocks.mem,power.limit"
        command = [smi, f"--query-gpu={asked}", "--format=csv"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        print((answer.stdout + answer.stderr).strip())
    print("; ".join(f"{name} {value}" for name, value in describe_machine().items()))


if __name__ == "__main__":
    main()
