"""linear, lm_head and router_logits with dense weights: few tokens by skinny kernels, up to 128 by wgmma on compute
capability 9.0, many by cuBLASLt where it is installed. Routers do without cuBLASLt: their matrices are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind.dispatch import Kernel
from aethermind_cuda.cublas import WORKSPACE_BYTES, DenseProduct
from aethermind_cuda.kernels._common import BIAS_OF_LOGITS, cuda_kernel
from aethermind_cuda.kernels._cublaslt import CUBLASLT, MIN_CUBLASLT_TOKENS, has_cublaslt
from aethermind_cuda.kernels._dense_wgmma import dense_wgmma
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.launch import Call, DeviceArray, Launch, Work

__all__ = ["KERNELS", "dense_product"]

_LINEAR = Projection("linear", num_weights=1, group_chunks=2, max_skinny_tokens=32)


def _launch(
    out: DeviceArray, x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, *, is_invariant: bool = False
) -> Launch:
    sizes = x.shape[0], out.shape[1], x.shape[1]
    arguments = (out, x, weight, bias, *sizes, out.dtype is not x.dtype)
    return _LINEAR.launch(str(x.dtype), sizes, arguments, x.dtype, is_invariant=is_invariant, dense=[weight])


def dense_product(
    out: DeviceArray, x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, workspace: int
) -> DenseProduct:
    """The product by cuBLASLt, with the tiled kernel as a fallback."""
    return DenseProduct(out, x, weight, bias, workspace, _launch)


def _launches(is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        out, x, weight, bias = _arrays(call)
        by_wgmma = None if is_invariant else dense_wgmma(out, x, [weight], bias, call.device)
        yield by_wgmma or _launch(out, x, weight, bias, is_invariant=is_invariant)

    return launches


def _arrays(call: Call) -> tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray | None]:
    x, weight, *biases = call.inputs
    assert x is not None
    assert weight is not None
    return call.outputs[0], x, weight, biases[0] if biases else None


_without_cublaslt = _launches(is_invariant=False)


def _products(call: Call) -> Iterator[Work]:
    out, x, weight, bias = _arrays(call)
    if out.shape[0] < MIN_CUBLASLT_TOKENS:
        yield from _without_cublaslt(call)
    else:
        by_wgmma = dense_wgmma(out, x, [weight], bias, call.device)
        yield by_wgmma or dense_product(out, x, weight, bias, call.workspace)


def _own_kernels(operator: str) -> tuple[Kernel, Kernel]:
    return (
        cuda_kernel(operator, _without_cublaslt, is_batch_invariant=False, additions=BIAS_OF_LOGITS),
        cuda_kernel(
            operator,
            _launches(is_invariant=True),
            name="cuda/batch_invariant",
            priority=-1,
            additions=BIAS_OF_LOGITS,
        ),
    )


def _kernels(operator: str) -> tuple[Kernel, ...]:
    by_cublaslt = cuda_kernel(
        operator,
        _products,
        name=CUBLASLT,
        priority=1,
        supports=has_cublaslt,
        has_heuristics=True,
        workspace_bytes=lambda _: WORKSPACE_BYTES,
        is_batch_invariant=False,
    )
    return by_cublaslt, *_own_kernels(operator)


KERNELS = (*_kernels("linear"), *_kernels("lm_head"), *_own_kernels("router_logits"))
