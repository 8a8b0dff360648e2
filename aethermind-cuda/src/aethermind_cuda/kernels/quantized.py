"""linear, lm_head and gate_up_silu with quantised weights, for each of the core's formats with one level of scales.

Where cuBLASLt is installed, `linear` and `gate_up_silu` of many tokens dequantise their weights first. `lm_head` does
not: it rarely has as many rows, and its logits must not be rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.ops.weight_format import CHECKPOINT_FORMAT_NAMES, FORMAT_NAMES, WeightFormat, parse_format
from aethermind_cuda.kernels._common import BIAS_OF_LOGITS, cuda_kernel
from aethermind_cuda.kernels._cublaslt import has_cublaslt
from aethermind_cuda.kernels._dequantize import (
    MIN_DEQUANTIZED_GATE_UP_TOKENS,
    MIN_DEQUANTIZED_TOKENS,
    dequantized_product,
    dequantized_product_bytes,
)
from aethermind_cuda.kernels._projection import SplitProjection
from aethermind_cuda.kernels._quantized_wgmma import quantized_wgmma, quantized_wgmma_bytes, takes_quantized_wgmma
from aethermind_cuda.kernels.elementwise import elementwise
from aethermind_cuda.launch import Call, DeviceArray, Launch, Work
from aethermind_cuda.quantized_weights import GROUP_CHUNKS, QuantizedLayout, quantized_pack

__all__ = ["FORMATS", "KERNELS"]

_LINEAR = SplitProjection("linear_quantized", num_weights=1, group_chunks=GROUP_CHUNKS)
_GATE_UP = SplitProjection("gate_up_silu_quantized", num_weights=2, group_chunks=GROUP_CHUNKS)
_ROW_OUTPUTS = 8
_OPERATORS = {
    "linear": (_LINEAR, ("weight",)),
    "lm_head": (_LINEAR, ("weight",)),
    "gate_up_silu": (_GATE_UP, ("w_gate", "w_up")),
}


def _launches(
    projection: SplitProjection, format: WeightFormat, is_invariant: bool
) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        x, *operands = call.inputs
        (out,) = call.outputs
        assert x is not None
        if not is_invariant and takes_quantized_wgmma(format, x, call.device):
            yield from quantized_wgmma(
                format, out, x, *_weights_and_bias(projection, call), call.device, call.workspace
            )
            return
        (num_tokens, num_inputs), num_outputs = x.shape, out.shape[1]
        sizes = num_tokens, num_outputs, num_inputs
        layout = QuantizedLayout(format, (num_outputs, num_inputs))
        arguments: tuple[Any, ...]
        if projection is _LINEAR:
            weight, *biases = operands
            arguments = (out, x, weight, biases[0] if biases else None, *sizes, out.dtype is not x.dtype)
        else:
            arguments = (out, x, *operands, *sizes)
        arguments = (*arguments, layout.num_blocks, layout.log2_chunks, layout.affine_term)
        if is_invariant:
            yield projection.batch_invariant_launch(format, sizes, arguments, x.dtype)
        else:
            yield from projection.launches(format, sizes, arguments, x.dtype, call.device, call.workspace)

    return launches


def _products(projection: SplitProjection, format: WeightFormat) -> Callable[[Call], Iterator[Work]]:
    without_cublaslt = _launches(projection, format, is_invariant=False)

    def products(call: Call) -> Iterator[Work]:
        x, *operands = call.inputs
        (out,) = call.outputs
        assert x is not None
        is_few = x.shape[0] < _min_dequantized_tokens(projection) or takes_quantized_wgmma(format, x, call.device)
        # With a bias cuBLASLt needs 16-byte aligned rows (see `cublas`).
        if is_few or out.shape[1] % _ROW_OUTPUTS:
            yield from without_cublaslt(call)
            return
        layout = QuantizedLayout(format, (out.shape[1], x.shape[1]))
        weight, other = (*operands, None)[:2]
        assert weight is not None
        if projection is _LINEAR:
            yield from dequantized_product(layout, out, x, weight, other, call.workspace)
            return
        assert other is not None
        up = out._replace(address=call.workspace + dequantized_product_bytes(layout, x.dtype))
        yield from dequantized_product(layout, out, x, weight, None, call.workspace)
        yield from dequantized_product(layout, up, x, other, None, call.workspace)
        yield elementwise("silu_mul", out, out, up)

    return products


def _weights_and_bias(projection: SplitProjection, call: Call) -> tuple[list[DeviceArray], DeviceArray | None]:
    _, *operands = call.inputs
    weights = [weight for weight in operands[: projection.num_weights] if weight is not None]
    return weights, (*operands[projection.num_weights :], None)[0]


def _min_dequantized_tokens(projection: SplitProjection) -> int:
    return MIN_DEQUANTIZED_TOKENS if projection is _LINEAR else MIN_DEQUANTIZED_GATE_UP_TOKENS


def _split_k_workspace_bytes(projection: SplitProjection, format: WeightFormat, call: Call) -> int:
    x, (out,) = call.inputs[0], call.outputs
    assert x is not None
    (num_tokens, num_inputs), num_outputs = x.shape, out.shape[1]
    return max(
        projection.split_k_workspace_bytes((num_tokens, num_outputs, num_inputs), x.dtype, call.device),
        quantized_wgmma_bytes(
            num_tokens, [num_outputs * projection.num_weights], num_inputs, format, x.dtype, call.device
        ),
    )


def _products_bytes(projection: SplitProjection, format: WeightFormat, call: Call) -> int:
    x, (out,) = call.inputs[0], call.outputs
    assert x is not None
    nbytes = _split_k_workspace_bytes(projection, format, call)
    if x.shape[0] < _min_dequantized_tokens(projection):
        return nbytes
    dequantized_bytes = dequantized_product_bytes(QuantizedLayout(format, (out.shape[1], x.shape[1])), x.dtype)
    return max(nbytes, dequantized_bytes if projection is _LINEAR else dequantized_bytes + out.nbytes)


def _kernels(operator: str, format: WeightFormat) -> Iterator[Kernel]:
    projection, weights = _OPERATORS[operator]
    shared: dict[str, Any] = {
        "packs": dict.fromkeys(weights, quantized_pack(format)),
        "weight_formats": frozenset({format.name}),
        "additions": BIAS_OF_LOGITS,
    }
    name = f"int{format.bits}"
    if operator != "lm_head":
        yield cuda_kernel(
            operator,
            _products(projection, format),
            name=f"cuda/cublaslt_{name}",
            priority=1,
            supports=has_cublaslt,
            has_heuristics=True,
            workspace_bytes=partial(_products_bytes, projection, format),
            is_batch_invariant=False,
            rounds_weights=True,
            **shared,
        )
    yield cuda_kernel(
        operator,
        _launches(projection, format, is_invariant=False),
        name=f"cuda/{name}",
        workspace_bytes=partial(_split_k_workspace_bytes, projection, format),
        is_batch_invariant=False,
        **shared,
    )
    invariant = _launches(projection, format, is_invariant=True)
    yield cuda_kernel(operator, invariant, name=f"cuda/{name}_batch_invariant", priority=-1, **shared)


FORMATS = tuple(
    format
    for name in (*FORMAT_NAMES, *CHECKPOINT_FORMAT_NAMES)
    if (format := parse_format(name)) and not format.super_block_size and format.scale_dtype == "float16"
)
"""The formats with one level of float16 scales, which have the layout of `quantized_weights`."""

KERNELS = tuple(kernel for operator in _OPERATORS for format in FORMATS for kernel in _kernels(operator, format))
