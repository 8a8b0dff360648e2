"""Compiles csrc/*.cu ahead of time: a cubin for each operator and target, and a manifest of what is in them.

    python aethermind-cuda/build_kernels.py [--targets 80,90a] [--jobs 2] [--only rms_norm] [--line-info]

A cubin is rebuilt when its source, an included header, the flags or the compiler changed; comments and whitespace do
not count. nvcc is looked for in CUDA_HOME, the `nvidia-cuda-nvcc` wheel and PATH; a host compiler (g++) is required.
With Triton installed, csrc/triton is compiled, too (see `build_triton`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_triton

__all__ = [
    "FLAGS",
    "LINE_INFO",
    "TARGETS",
    "BuildError",
    "build",
    "digests",
    "find_tool",
    "read_manifest",
    "source_digest",
    "targets_of",
]

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "csrc"
CUBINS = ROOT / "src" / "aethermind_cuda" / "cubins"
TARGETS = ("80", "86", "89", "90a", "100f", "120")
"""Compute capabilities; `a` is architecture-specific, `f` family-specific (10.0 and 10.3)."""
FLAGS = ("-cubin", "-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v", "-Werror", "all-warnings")
PTX_FLAGS = ("-cubin", "-Xptxas", "-v", "-Werror", "all-warnings")
LINE_INFO = ("-lineinfo",)
"""Source lines for profilers and sanitizers; triples the size of cubins."""

_INSIGNIFICANT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/|\\\n|\s+', re.DOTALL)
"""Comments and whitespace; strings are matched to be kept."""
_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)
_TARGETS = re.compile(r"^// Targets: (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_USAGE = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class BuildError(Exception):
    """Kernels cannot be compiled; the message states the cause and the remedy."""


class _Unit(NamedTuple):
    """A compilation unit: `compile(target)` makes a cubin and returns its manifest entry."""

    name: str
    digest: str
    targets: Collection[str]
    compile: Callable[[str], dict[str, Any]]


def find_tool(name: str) -> Path:
    """Find nvcc or another CUDA tool; BuildError states how to install it."""
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    wheels = [Path(entry) / "nvidia" / "cu13" for entry in sys.path if entry]
    for folder in (*homes, *wheels):
        if (folder / "bin" / name).is_file():
            return folder / "bin" / name
    on_path = shutil.which(name)
    if on_path is None:
        raise BuildError(
            f"{name} was not found, which CUDA kernels are built with. Set CUDA_HOME, or run `pip install "
            "nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-cuobjdump nvidia-nvvm`."
        )
    return Path(on_path)


def read_manifest(folder: Path = CUBINS) -> dict[str, Any]:
    """Read the manifest of an earlier build; empty if there is none."""
    path = folder / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"compiler": "", "operators": {}}
    return manifest


def source_digest(source: Path, salt: Iterable[str] = ()) -> str:
    """A digest of a source, its includes and the salt (flags, compiler)."""
    digest = hashlib.sha256("\n".join(salt).encode())
    for path in sorted(_included(source)):
        code = _INSIGNIFICANT.sub(lambda found: found[1] or "", path.read_text(encoding="utf-8"))
        digest.update(f"{path.relative_to(SOURCES).as_posix()}\0{code}\0".encode())
    return digest.hexdigest()


def build(
    targets: Sequence[str] = TARGETS,
    jobs: int = 2,
    only: Sequence[str] = (),
    output: Path = CUBINS,
    flags: Sequence[str] = FLAGS,
) -> dict[str, Any]:
    """Bring the cubins in `output` up to date and return the manifest; BuildError when compilation fails."""
    nvcc = find_tool("nvcc")
    version = _nvcc_version(nvcc)
    output.mkdir(parents=True, exist_ok=True)
    before = read_manifest(output)
    triton = build_triton.find_triton()
    units = list(_units(nvcc, version, triton or before.get("triton", ""), output, flags))
    operators: dict[str, Any] = {}
    stale: list[tuple[_Unit, str]] = []
    for unit in units:
        known = before["operators"].get(unit.name, {})
        is_fresh = known.get("digest") == unit.digest
        kept = {
            target: built
            for target, built in known.get("targets", {}).items()
            if is_fresh and (output / built["file"]).is_file()
        }
        is_triton = unit.name in build_triton.KERNELS
        if is_triton and triton is None and not kept:
            continue
        operators[unit.name] = {"digest": unit.digest, "targets": kept}
        if (not only or unit.name in only) and not (is_triton and triton is None):
            stale += [(unit, target) for target in targets if target in unit.targets and target not in kept]
    manifest = {
        "compiler": version,
        "triton": triton or before.get("triton", ""),
        "flags": list(flags),
        "operators": operators,
    }
    failures = []
    with ThreadPoolExecutor(jobs) as pool:
        submitted = [pool.submit(unit.compile, target) for unit, target in stale]
        for (unit, target), job in zip(stale, submitted, strict=True):
            try:
                operators[unit.name]["targets"][target] = job.result()
            except BuildError as error:
                failures.append(str(error))
                continue
            _write(output, manifest)
    _remove_stale_cubins(output, operators)
    _write(output, manifest)
    if failures:
        raise BuildError("\n".join(failures))
    return manifest


def digests(compiler: str, triton: str) -> dict[str, str]:
    """The digests of up-to-date kernels for these compiler versions, by name."""
    return {unit.name: unit.digest for unit in _units(Path(), compiler, triton, Path(), FLAGS)}


def targets_of(source: Path) -> tuple[str, ...]:
    """The targets of a source: all, unless its first comment has a line `// Targets: 90a`."""
    named = _TARGETS.search(source.read_text(encoding="utf-8"))
    return tuple(named[1].split(", ")) if named else TARGETS


def _units(nvcc: Path, version: str, triton: str, output: Path, flags: Sequence[str]) -> Iterator[_Unit]:
    """All compilation units; Triton kernels only with a Triton version."""
    for source in sorted(SOURCES.glob("*.cu")):
        digest = source_digest(source, (version, *flags))
        yield _Unit(source.stem, digest, targets_of(source), partial(_compile, nvcc, flags, source, output))
    for name in build_triton.KERNELS if triton else ():
        digest = build_triton.digest(name, triton, version, *PTX_FLAGS)
        yield _Unit(name, digest, build_triton.TARGETS, partial(_compile_triton, nvcc, name, output))


def _compile(nvcc: Path, flags: Sequence[str], source: Path, output: Path, target: str) -> dict[str, Any]:
    began = time.monotonic()
    file = output / f"{source.stem}.sm_{target}.cubin"
    kernels = _run_nvcc(nvcc, [*flags, "-I", str(SOURCES)], source, target, file)
    return {"file": file.name, "seconds": round(time.monotonic() - began, 1), "kernels": kernels}


def _compile_triton(nvcc: Path, name: str, output: Path, target: str) -> dict[str, Any]:
    """Compile a Triton kernel; its manifest entry also has launch parameters."""
    began = time.monotonic()
    file = output / f"{name}.sm_{target}.cubin"
    try:
        compiled = build_triton.compile_kernel(name, target)
    except build_triton.TritonError as error:
        raise BuildError(str(error)) from error
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / f"{name}.ptx"
        source.write_text(compiled.ptx)
        kernels = _run_nvcc(nvcc, PTX_FLAGS, source, target, file)
    launch = {
        "threads": compiled.threads,
        "dynamic_shared_bytes": compiled.shared_bytes,
        "parameters": compiled.parameters,
        "products": compiled.matrix_instructions,
        "rows": build_triton.KERNELS[name].rows,
    }
    seconds = round(time.monotonic() - began, 1)
    return {"file": file.name, "seconds": seconds, "kernels": {name: kernels[name] | launch}}


def _run_nvcc(nvcc: Path, flags: Sequence[str], source: Path, target: str, file: Path) -> dict[str, dict[str, Any]]:
    """Compile to `file` and return the resource usage of its kernels."""
    command = [str(nvcc), *flags, f"-arch=sm_{target}", "-o", str(file), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"{source.name} does not compile for sm_{target}:\n{result.stdout}{result.stderr}")
    return _parse_usage(result.stdout + result.stderr)


def _parse_usage(log: str) -> dict[str, dict[str, Any]]:
    """Parse the resource usage that `ptxas -v` reports for each kernel."""
    kernels: dict[str, dict[str, Any]] = {}
    name = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name = match[1]
            kernels[name] = {"registers": 0, "shared_bytes": 0, "stack_bytes": 0, "spill_bytes": 0}
        elif (match := _FRAME.search(line)) and name:
            kernels[name] |= {"stack_bytes": int(match[1]), "spill_bytes": int(match[2]) + int(match[3])}
        elif (match := _USAGE.search(line)) and name:
            kernels[name] |= {"registers": int(match[1]), "shared_bytes": int(match[2] or 0)}
    return kernels


def _included(source: Path) -> set[Path]:
    found, pending = set[Path](), [source]
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        named = (SOURCES / name for name in _INCLUDE.findall(path.read_text(encoding="utf-8")))
        pending += [path for path in named if path.is_file()]
    return found


def _nvcc_version(nvcc: Path) -> str:
    answer = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"V(\d+\.\d+\.\d+)", answer)
    return match[1] if match else answer.strip()


def _remove_stale_cubins(output: Path, operators: dict[str, Any]) -> None:
    wanted = {built["file"] for operator in operators.values() for built in operator["targets"].values()}
    for file in output.glob("*.cubin"):
        if file.name not in wanted:
            file.unlink()


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    """Write atomically: another process may be reading."""
    temporary = folder / "manifest.draft"
    temporary.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    temporary.replace(folder / "manifest.json")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help="compute capabilities, such as 80,90a")
    parser.add_argument("--jobs", type=int, default=2, help="compilers that run at a time")
    parser.add_argument("--only", default="", help="operators to compile, instead of all")
    parser.add_argument("--line-info", action="store_true", help="for profilers: three times as large")
    arguments = parser.parse_args()
    flags = FLAGS + LINE_INFO if arguments.line_info else FLAGS
    began = time.monotonic()
    try:
        only = list(filter(None, arguments.only.split(",")))
        manifest = build(arguments.targets.split(","), arguments.jobs, only, flags=flags)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    count = sum(len(operator["targets"]) for operator in manifest["operators"].values())
    size = sum(file.stat().st_size for file in CUBINS.glob("*.cubin"))
    seconds, processor = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    duration = f"{seconds:.0f} s ({processor.ru_utime + processor.ru_stime:.0f} s of processor time)"
    print(f"{count} cubins, {size / 2**20:.1f} MiB, by nvcc {manifest['compiler']} in {duration}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
