"""Compiles csrc/triton/*.py to PTX, from which `build_kernels` makes cubins. Triton is a build-time compiler: it is not
imported at run time, and no GPU is needed.

    python build_triton.py paged_attention_prefill_triton_bfloat16_128 100f > kernel.json

prints a `Compiled` as JSON. Each kernel is compiled in its own process with a temporary cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["KERNELS", "TARGETS", "Compiled", "TritonError", "TritonKernel", "compile_kernel", "digest", "find_triton"]

SOURCES = Path(__file__).resolve().parent / "csrc" / "triton"
TARGETS = {"100f": 100}
"""Triton's names of the targets with tcgen05; other targets use the CUDA C++ kernels."""

_PARAMETER = re.compile(r"\.param \.(\w+)")
_MATRIX_INSTRUCTION = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
_TYPES = {"bfloat16": "bf16", "float16": "fp16"}


class TritonError(Exception):
    """Triton failed to compile a kernel; the message is its error."""


class TritonKernel(NamedTuple):
    """An entry point: a function of csrc/triton/paged_attention_prefill.py for one dtype and head dim."""

    dtype: str
    head_dim: int
    rows: int  # rows of a program's tile
    keys: int  # keys per iteration
    num_warps: int = 8
    num_stages: int = 3


class Compiled(NamedTuple):
    """The PTX of a kernel and how it is launched.

    `parameters` are the PTX types of its arguments, `matrix_instructions` are those that multiply tiles.
    """

    ptx: str
    threads: int
    shared_bytes: int
    parameters: list[str]
    matrix_instructions: list[str]


# The largest tiles without register spills for which two further stages of keys and values fit in shared memory.
KERNELS = {
    f"paged_attention_prefill_triton_{dtype}_{head_dim}": TritonKernel(dtype, head_dim, 128, keys)
    for dtype in _TYPES
    for head_dim, keys in ((64, 128), (128, 64))
}


def find_triton() -> str | None:
    """The version of the installed Triton."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def digest(name: str, *salt: str) -> str:
    """A digest of a kernel's sources, parameters and compiler."""
    found = hashlib.sha256("\n".join((name, repr(KERNELS[name]), *salt)).encode())
    for path in (*sorted(SOURCES.glob("*.py")), Path(__file__)):
        found.update(path.read_bytes())
    return found.hexdigest()


def compile_kernel(name: str, target: str) -> Compiled:
    """Compile a kernel for a target, in another process; TritonError when that fails."""
    with tempfile.TemporaryDirectory() as cache:
        # Without line information, which would contain the folder of the sources.
        variables = {**os.environ, "TRITON_CACHE_DIR": cache, "TRITON_DISABLE_LINE_INFO": "1", "TRITON_INTERPRET": "0"}
        command = [sys.executable, str(Path(__file__).resolve()), name, target]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if result.returncode:
        raise TritonError(f"{name} does not compile for sm_{target}:\n{result.stderr}")
    return Compiled(**json.loads(result.stdout.splitlines()[-1]))


def _compile_here(name: str, target: str) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = KERNELS[name]
    function = triton.jit(_load_source().paged_attention_prefill.fn, repr=lambda _: name)
    constants = {"HEAD_DIM": kernel.head_dim, "ROWS": kernel.rows, "KEYS": kernel.keys}
    kinds = {
        **dict.fromkeys(("out", "q", "k_cache", "v_cache"), f"*{_TYPES[kernel.dtype]}"),
        **dict.fromkeys(("cu_seqlens_q", "seqlens_k", "block_tables"), "*i32"),
        "scale_log2": "fp32",
        **dict.fromkeys(constants, "constexpr"),
    }
    signature = {name: kinds.get(name, "i32") for name in function.arg_names}
    # Tensors are 16-byte aligned. Integers are not specialised, so all of them are passed.
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[1:] in ("bf16", "fp16")
    }
    source = ASTSource(function, signature, constants, aligned)
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", TARGETS[target], 32), options=options)
    metadata_of_kernel: Any = compiled.metadata
    if (
        metadata_of_kernel.global_scratch_size
        or metadata_of_kernel.profile_scratch_size
        or metadata_of_kernel.num_ctas != 1
    ):
        raise TritonError(f"{name} needs scratch memory or clusters for sm_{target}, which is not provided.")
    # Triton has architecture-specific targets (`a`) only, but uses no instructions beyond the family's (`f`).
    ptx = re.sub(r"^\.target sm_\w+", f".target sm_{target}", compiled.asm["ptx"], flags=re.MULTILINE)
    entry = ptx[ptx.index(f".entry {name}(") :]
    parameters = _PARAMETER.findall(entry[: entry.index(")\n")])
    matrix_instructions = sorted({match[1] for match in _MATRIX_INSTRUCTION.finditer(ptx)})
    return Compiled(ptx, 32 * metadata_of_kernel.num_warps, metadata_of_kernel.shared, parameters, matrix_instructions)


def _load_source() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paged_attention_prefill", SOURCES / "paged_attention_prefill.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(json.dumps(_compile_here(sys.argv[1], sys.argv[2])._asdict()))
