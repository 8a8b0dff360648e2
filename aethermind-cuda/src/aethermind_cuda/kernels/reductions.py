"""Reductions over the last dim: sum, mean, max, min, argmax and softmax. A block processes one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]


def _launches(source: str, entry: str) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        (x,) = call.inputs
        (out,) = call.outputs
        assert x is not None
        width = x.shape[-1]
        rows = out.size if out.shape != x.shape else x.size // max(1, width)
        yield Launch(source, f"{entry}_{x.dtype}", (rows, 1, 1), (threads_for(width), 1, 1), (out, x, width))

    return launches


KERNELS = (
    *(cuda_kernel(name, _launches("reductions", f"reductions_{name}")) for name in ("sum", "mean", "max", "min")),
    cuda_kernel("argmax", _launches("argmax", "argmax")),
    cuda_kernel("softmax", _launches("softmax", "softmax")),
)
