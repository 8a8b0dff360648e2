"""linear, lm_head and gate_up_silu with weights in fp8.

Up to eight tokens are a GEMV that multiplies codes with inputs that are not quantised. From nine tokens on, `linear`
and `gate_up_silu` quantise their inputs where cuBLASLt is installed (`_float8`); `lm_head` does not, whose logits must
not be rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind.ops.weight_format import FP8
from aethermind_cuda.float8_weights import FLOAT8_PACK, Float8Layout
from aethermind_cuda.kernels._common import BIAS_OF_LOGITS, cuda_kernel, div_up
from aethermind_cuda.kernels._cublaslt import MIN_CUBLASLT_TOKENS, has_cublaslt
from aethermind_cuda.kernels._float8 import (
    Float8Product,
    float8_gate_up_silu,
    float8_gate_up_silu_bytes,
    float8_products,
    float8_products_bytes,
)
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.launch import Call, DeviceArray, Launch, Work

__all__ = ["CUBLASLT_FLOAT8", "KERNELS", "is_multiplied", "linear_product"]

CUBLASLT_FLOAT8 = "cuda/cublaslt_fp8"
"""Name of the kernels that quantise the inputs of many tokens."""

_GROUP_CHUNKS = 4
_LINEAR = Projection("linear_float8", num_weights=1, group_chunks=_GROUP_CHUNKS)
_GATE_UP = Projection("gate_up_silu_float8", num_weights=2, group_chunks=_GROUP_CHUNKS, steps_per_warp=7)
_OPERATORS = {
    "linear": (_LINEAR, ("weight",)),
    "lm_head": (_LINEAR, ("weight",)),
    "gate_up_silu": (_GATE_UP, ("w_gate", "w_up")),
}
_MAX_GEMV_TOKENS = 32
_TILED_TOKENS, _TILED_OUTPUTS, _TILED_THREADS = 32, 128, 128
_TILED_SHARED_BYTES = 3 * _GROUP_CHUNKS * _TILED_TOKENS * 64
_OUTPUT_ALIGNMENT = 16
"""cuBLASLt multiplies fp8 if the number of outputs is a multiple of this."""
_ALIGNMENT = 256
_HALF = frozenset({DType.FLOAT16, DType.BFLOAT16})


def _launch(
    projection: Projection,
    out: DeviceArray,
    x: DeviceArray,
    weights: Sequence[DeviceArray],
    bias: DeviceArray | None,
    *,
    is_invariant: bool = False,
) -> Launch:
    """The launch without cuBLASLt, for any number of tokens."""
    sizes = num_tokens, num_outputs, num_inputs = x.shape[0], out.shape[1], x.shape[1]
    rest: tuple[Any, ...] = (bias, *sizes, out.dtype is not x.dtype) if projection is _LINEAR else sizes
    arguments = (out, x, *weights, *rest)
    if x.dtype is DType.FLOAT32 or num_tokens <= _MAX_GEMV_TOKENS or is_invariant:
        codes = [Float8Layout((num_outputs, num_inputs)).codes(weight.address) for weight in weights]
        return projection.launch(str(x.dtype), sizes, arguments, x.dtype, is_invariant=True, dense=codes)
    grid = div_up(num_tokens, _TILED_TOKENS), div_up(num_outputs * len(weights), _TILED_OUTPUTS), 1
    entry = f"{projection.source}_tiled_{x.dtype}"
    return Launch(projection.source, entry, grid, (_TILED_THREADS, 1, 1), arguments, _TILED_SHARED_BYTES)


def is_multiplied(call: Call) -> bool:
    """Whether a call has as many tokens, and such outputs, that cuBLASLt computes it."""
    (num_tokens, num_outputs) = call.outputs[0].shape
    return num_tokens >= MIN_CUBLASLT_TOKENS and not num_outputs % _OUTPUT_ALIGNMENT


def linear_product(call: Call) -> Float8Product:
    """The product of a call of `linear`."""
    out, x, weights, bias = _operands(_LINEAR, call)
    return _product(out, x, weights[0], bias)


def _product(out: DeviceArray, x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None) -> Float8Product:
    return Float8Product(out, weight, bias, _launch(_LINEAR, out, x, [weight], bias))


def _operands(
    projection: Projection, call: Call
) -> tuple[DeviceArray, DeviceArray, list[DeviceArray], DeviceArray | None]:
    """The output, x, weights and bias of a call."""
    x, *operands = call.inputs
    assert x is not None
    weights = [weight for weight in operands[: projection.num_weights] if weight is not None]
    biases = operands[projection.num_weights :]
    return call.outputs[0], x, weights, biases[0] if biases else None


def _launches(projection: Projection, is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        yield _launch(projection, *_operands(projection, call), is_invariant=is_invariant)

    return launches


def _products(projection: Projection) -> Callable[[Call], Iterator[Work]]:
    def products(call: Call) -> Iterator[Work]:
        out, x, weights, bias = _operands(projection, call)
        if not is_multiplied(call):
            yield _launch(projection, out, x, weights, bias)
            return
        if projection is _LINEAR:
            yield from float8_products(x, [_product(out, x, weights[0], bias)], call.device, call.workspace)
            return
        outs = out, out._replace(address=call.workspace)
        gate, up = (_product(target, x, weight, None) for target, weight in zip(outs, weights, strict=True))
        yield from float8_gate_up_silu(x, gate, up, call.device, call.workspace + _up_bytes(out))

    return products


def _up_bytes(out: DeviceArray) -> int:
    """Bytes of the second product of a SwiGLU, at the begin of the workspace."""
    return align_up(out.nbytes, _ALIGNMENT)


def _products_bytes(projection: Projection) -> Callable[[Call], int]:
    def nbytes(call: Call) -> int:
        out, x, _, _ = _operands(projection, call)
        if projection is _LINEAR:
            return float8_products_bytes(x, [out.shape[1]], call.device)
        return _up_bytes(out) + float8_gate_up_silu_bytes(x, out.shape[1], call.device)

    return nbytes


def _kernels(operator: str) -> Iterator[Kernel]:
    projection, weights = _OPERATORS[operator]
    shared: dict[str, Any] = {
        "packs": dict.fromkeys(weights, FLOAT8_PACK),
        "weight_formats": frozenset({FP8.name}),
        "additions": BIAS_OF_LOGITS,
    }
    if operator != "lm_head":
        yield cuda_kernel(
            operator,
            _products(projection),
            name=CUBLASLT_FLOAT8,
            dtypes=_HALF,
            priority=1,
            supports=has_cublaslt,
            has_heuristics=True,
            workspace_bytes=_products_bytes(projection),
            is_batch_invariant=False,
            arithmetic=DType.FLOAT8_E4M3FN,
            **shared,
        )
    yield cuda_kernel(operator, _launches(projection, False), name="cuda/fp8", is_batch_invariant=False, **shared)
    invariant = _launches(projection, is_invariant=True)
    yield cuda_kernel(operator, invariant, name="cuda/fp8_batch_invariant", priority=-1, **shared)


KERNELS = tuple(kernel for operator in _OPERATORS for kernel in _kernels(operator))
