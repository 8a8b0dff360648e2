"""gate_up_silu with unquantised weights: one fused kernel, or for many tokens one or two cuBLASLt products followed by
silu_mul.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind_cuda.cublas import WORKSPACE_BYTES
from aethermind_cuda.kernels._common import cuda_kernel
from aethermind_cuda.kernels._cublaslt import CUBLASLT, MIN_CUBLASLT_TOKENS, has_cublaslt
from aethermind_cuda.kernels._dense_wgmma import dense_wgmma
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.kernels._stacked import stacked_product, stacked_product_bytes
from aethermind_cuda.kernels.elementwise import elementwise, silu_mul_halves
from aethermind_cuda.kernels.linear import dense_product
from aethermind_cuda.launch import Call, Launch, Work

__all__ = ["KERNELS"]

_MAX_STACKED_TOKENS = 512
"""From this many tokens each of the two products fills the GPU, and a stacked one would only double the workspace."""

_GATE_UP = Projection("gate_up_silu", num_weights=2, group_chunks=2, max_skinny_tokens=32)


def _launches(is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        x, w_gate, w_up = call.inputs
        (out,) = call.outputs
        assert x is not None
        assert w_gate is not None
        assert w_up is not None
        by_wgmma = None if is_invariant else dense_wgmma(out, x, (w_gate, w_up), None, call.device)
        if by_wgmma is not None:
            yield by_wgmma
            return
        sizes = x.shape[0], out.shape[1], x.shape[1]
        arguments = (out, x, w_gate, w_up, *sizes)
        dense = [w_gate, w_up]
        yield _GATE_UP.launch(str(x.dtype), sizes, arguments, x.dtype, is_invariant=is_invariant, dense=dense)

    return launches


_without_cublaslt = _launches(is_invariant=False)


def _products(call: Call) -> Iterator[Work]:
    x, w_gate, w_up = call.inputs
    (out,) = call.outputs
    assert x is not None
    assert w_gate is not None
    assert w_up is not None
    if x.shape[0] < MIN_CUBLASLT_TOKENS:
        yield from _without_cublaslt(call)
        return
    by_wgmma = dense_wgmma(out, x, (w_gate, w_up), None, call.device)
    if by_wgmma is not None:
        yield by_wgmma
        return
    if x.shape[0] <= _MAX_STACKED_TOKENS:
        stacked = stacked_product(x, (w_gate, w_up), (), call.workspace, call.device)
        if stacked is not None:
            product, columns = stacked
            yield product
            yield silu_mul_halves(out, columns)
            return
    up = out._replace(address=call.workspace + WORKSPACE_BYTES)
    yield dense_product(out, x, w_gate, None, call.workspace)
    yield dense_product(up, x, w_up, None, call.workspace)
    yield elementwise("silu_mul", out, out, up)


def _workspace_bytes(call: Call) -> int:
    x, *weights = call.inputs
    assert x is not None
    stackable = x._replace(shape=(min(x.shape[0], _MAX_STACKED_TOKENS), x.shape[1]))
    stacked = stacked_product_bytes(stackable, [weight for weight in weights if weight is not None])
    return max(stacked, WORKSPACE_BYTES + call.outputs[0].nbytes)


KERNELS = (
    cuda_kernel(
        "gate_up_silu",
        _products,
        name=CUBLASLT,
        priority=1,
        supports=has_cublaslt,
        has_heuristics=True,
        workspace_bytes=_workspace_bytes,
        is_batch_invariant=False,
    ),
    cuda_kernel("gate_up_silu", _without_cublaslt, is_batch_invariant=False),
    cuda_kernel("gate_up_silu", _launches(is_invariant=True), name="cuda/batch_invariant", priority=-1),
)
