"""When a dense product is cuBLASLt's."""

from __future__ import annotations

from aethermind.dispatch import Signature
from aethermind_cuda.cublas import find_cublaslt

__all__ = ["CUBLASLT", "LEAST_TOKENS", "has_cublaslt"]

CUBLASLT = "cuda/cublaslt"
"""The name of the kernels whose products of many tokens are the library's."""

LEAST_TOKENS = 9
"""From here on a product is cuBLASLt's. Below it our own kernels read weights faster, and begin to read them while the
kernel before still runs; the ones for 9 to 32 tokens, which serve where cuBLASLt is missing, took 1.2 to 1.9 times as
long on an H200."""


def has_cublaslt(_: Signature) -> str | None:
    """Why its products cannot be had, or None (see `Kernel.supports`)."""
    return None if find_cublaslt() is not None else "cuBLASLt is not installed"
