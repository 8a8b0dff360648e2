"""When a dense product is cuBLASLt's."""

from __future__ import annotations

from aethermind.dispatch import Signature
from aethermind_cuda.cublas import find_cublaslt

__all__ = ["LEAST_TOKENS", "has_cublaslt"]

LEAST_TOKENS = 33
"""From here on a product is bound by arithmetic, which cuBLASLt has tuned for each GPU; below it by reading weights."""


def has_cublaslt(_: Signature) -> str | None:
    """Why its products cannot be had, or None (see `Kernel.supports`)."""
    return None if find_cublaslt() is not None else "cuBLASLt is not installed"
