"""When dense products use cuBLASLt."""

from __future__ import annotations

from aethermind.dispatch import Signature
from aethermind_cuda.cublas import find_cublaslt

__all__ = ["CUBLASLT", "MIN_CUBLASLT_TOKENS", "has_cublaslt"]

CUBLASLT = "cuda/cublaslt"
"""Name of the kernels that use cuBLASLt for many tokens."""

MIN_CUBLASLT_TOKENS = 9
"""Fewest tokens for cuBLASLt. For fewer, the skinny kernels read weights faster and start reading them while the
previous kernel runs; for 9 to 32 tokens they are slower than cuBLASLt and serve only without it."""


def has_cublaslt(_: Signature) -> str | None:
    """Why cuBLASLt cannot be used, or None (see `Kernel.supports`)."""
    return None if find_cublaslt() is not None else "cuBLASLt is not installed"
