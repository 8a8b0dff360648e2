"""Compiles kernels for the host: a library for each source, kept under build/ by a digest of all it is made of."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

__all__ = ["BUILD", "CSRC", "CompileError", "build_kernels", "build_runtime", "source_line"]

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
CSRC = _ROOT / "aethermind-cuda" / "csrc"
BUILD = _ROOT / "build" / "cuda-emulator"

_COMMON = ("-std=c++20", "-g1", "-fPIC", "-I", str(_HERE / "include"))
_RUNTIME = (*_COMMON, "-O2", "-fno-omit-frame-pointer")
_LANGUAGE = (*_COMMON, "-x", "c++", "-DAETHER_EMULATED", "-I", str(CSRC), "-w")
# Every access of a kernel becomes a call of the runtime, which judges it (see runtime/checks.cc).
_CHECKED = (
    "-O1",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
    "-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "-fno-ipa-reference-addressable",
    "-fno-extern-tls-init",
    "-fno-strict-aliasing",
    "-fno-gnu-unique",  # shared memory of a function in a header is that of each library, not of the first one
)
_CLUSTER = r"(?:__cluster_dims__\s*\((?P<cluster>(?:[^()]|\([^()]*\))*)\)\s*)?"
_BOUNDS = r"(?:__launch_bounds__\s*\((?P<{}>(?:[^()]|\([^()]*\))*)\)\s*)?"
_KERNEL = re.compile(
    rf'extern\s+"C"\s+{_BOUNDS.format("before")}__global__\s+{_BOUNDS.format("between")}void\s+'
    rf"{_CLUSTER}{_BOUNDS.format('after')}(?P<name>\w+)\s*\((?P<parameters>[^()]*)\)"
)
_NAMESPACE = re.compile(r"\bnamespace\s+(aether[\w:]*)\s*\{")


class CompileError(Exception):
    """What the compiler said."""


@cache
def build_runtime() -> Path:
    """The library that runs kernels."""
    sources = sorted((_HERE / "runtime").glob("*.cc"))
    headers = [*(_HERE / "runtime").glob("*.h"), _HERE / "include" / "emulation_runtime.h"]
    target = BUILD / f"runtime-{_digest([*sources, *headers], _RUNTIME)}.so"
    if not target.is_file():
        _compile([*_RUNTIME, "-shared", *map(str, sources)], target)
    return target


def build_kernels(source: Path, defines: Sequence[str] = ()) -> tuple[Path, dict[str, list[str]]]:
    """The library of one `.cu` file, and by kernel the names of its parameters; CompileError when it is none."""
    runtime = build_runtime()
    headers = [*(_HERE / "include").glob("*.h"), *CSRC.rglob("*.cuh"), *source.parent.rglob("*.cuh")]
    flags = [*_LANGUAGE, *(f"-D{define}" for define in defines)]
    used = [source, _HERE / "runtime" / "api.h", _HERE / "runtime" / "dynamic_shared.s", *sorted(set(headers))]
    target = BUILD / f"{source.stem}-{_digest(used, [*flags, *_CHECKED, runtime.name])}.so"
    listing = target.with_suffix(".kernels")
    if not target.is_file() or not listing.is_file():
        preprocessed = _run(["g++", *flags, "-DAETHER_LISTING", "-E", "-P", str(source)])
        kernels = list(_KERNEL.finditer(preprocessed))
        if not kernels:
            raise CompileError(f'{source.name} has no kernel: declare one as extern "C" __global__ void name(…).')
        BUILD.mkdir(parents=True, exist_ok=True)
        unit = BUILD / f"{target.stem}-{os.getpid()}.cc"
        unit.write_text(_unit(source, kernels, sorted(set(_NAMESPACE.findall(preprocessed)))))
        compiled = unit.with_suffix(".o")
        try:
            _run(["g++", *flags, *_CHECKED, "-c", str(unit), "-o", str(compiled)])
            # Linked without the sanitizers' own runtimes.
            _compile(["-shared", str(compiled), str(_HERE / "runtime" / "dynamic_shared.s"), str(runtime)], target)
        finally:
            unit.unlink()
            compiled.unlink(missing_ok=True)
        draft = listing.with_name(f"{listing.name}.{os.getpid()}")
        draft.write_text("".join(f"{one['name']} {' '.join(_parameters(one))}\n" for one in kernels))
        draft.replace(listing)
    lines = (line.split() for line in listing.read_text().splitlines())
    return target, {name: parameters for name, *parameters in lines}


def source_line(library: str, offset: int) -> str:
    """The file and line that an instruction came from, such as `rms_norm.cu:41`."""
    if shutil.which("addr2line") is None:
        return f"{Path(library).name}+{offset:#x}"
    found = _run(["addr2line", "-i", "-e", library, hex(offset)]).splitlines()
    places = [Path(line.split(" ")[0]).name for line in found]
    return next((place for place in places if not place.startswith("emulation")), places[0])


def _unit(source: Path, kernels: Iterable[re.Match[str]], namespaces: Iterable[str]) -> str:
    lines = [f'#include "{source}"', '#include "emulation_table.h"']
    lines += [f"using namespace {name};" for name in namespaces if "emulation" not in name]
    lines += ['extern "C" const EmulatorKernel emulator_kernels[] = {']
    for kernel in kernels:
        bounds = (kernel["before"] or kernel["between"] or kernel["after"] or "0").split(",")[0]
        cluster = (kernel["cluster"] or "1").split(",")[0]
        lines.append(f'    aether::emulation::describe<&::{kernel["name"]}>("{kernel["name"]}", {bounds}, {cluster}),')
    return "\n".join([*lines, "    {}};", ""])


def _parameters(kernel: re.Match[str]) -> list[str]:
    names = (re.search(r"(\w+)\s*$", parameter) for parameter in kernel["parameters"].split(","))
    return [name[1] for name in names if name is not None]


def _digest(files: Iterable[Path], salt: Iterable[str]) -> str:
    digest = hashlib.sha256("\0".join([_compiler(), *salt]).encode())
    for path in sorted(set(files)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


@cache
def _compiler() -> str:
    return _run(["g++", "--version"]).splitlines()[0]


def _compile(arguments: Sequence[str], target: Path) -> None:
    """At once or not at all: another process may want the same."""
    BUILD.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    _run(["g++", *arguments, "-o", str(draft)])
    draft.replace(target)


def _run(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(result.stderr)
    return result.stdout
