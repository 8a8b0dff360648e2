"""Mixtures of experts: router_topk, the products of chosen experts, and their weighted sum."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind.ops.weight_format import FP8, MXFP4, WeightFormat
from aethermind_cuda.float8_weights import weight_pack
from aethermind_cuda.kernels._common import cuda_kernel, threads_for
from aethermind_cuda.kernels._expert_products import (
    MAX_EXPERTS,
    ExpertProduct,
    codes_of,
    expert_products,
    sorting_bytes,
)
from aethermind_cuda.kernels._expert_wgmma import (
    dequantized_expert_bytes,
    is_dequantized,
    takes_wgmma,
    wgmma_expert_products,
)
from aethermind_cuda.kernels._heads import last_dim
from aethermind_cuda.kernels._mxfp4_experts import mxfp4_products, takes_mxfp4_products
from aethermind_cuda.kernels._quantized_experts import quantized_expert_products, takes_quantized_experts
from aethermind_cuda.kernels.elementwise import clamped_silu_mul
from aethermind_cuda.kernels.quantized import FORMATS
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["EXPERT_FORMATS", "KERNELS"]

_VECTOR_BYTES = 16
_ALIGNMENT = 256
_EXPERT_BITS = (8, 4)
"""Bits of quantised weights that kernels are compiled for; with others the operators are decomposed."""

EXPERT_FORMATS = (*(format for format in FORMATS if format.bits in _EXPERT_BITS), FP8)
"""Formats with float16 scales of the weights of experts, and of those of heads."""


class _RouterTopK(ctypes.Structure):
    """`RouterTopK` of csrc/router_topk.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ids", "weights", "logits", "correction")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("num_experts", "k", "sigmoid", "renormalize")),
        *((name, ctypes.c_int) for name in ("num_groups", "top_groups", "group_score_k")),
    ]


def _router_topk(call: Call) -> Iterator[Launch]:
    logits, correction = call.inputs
    assert logits is not None
    num_tokens, num_experts = logits.shape
    counts = {name: int(call.attributes[name]) for name in ("k", "sigmoid", "renormalize")}
    groups = {name: int(call.attributes[name]) for name in ("num_groups", "top_groups", "group_score_k")}
    pointers = [None if array is None else array.address for array in (*call.outputs, logits, correction)]
    scale = float(call.attributes["scale"])
    parameters = _RouterTopK(*pointers, scale, num_experts=num_experts, **counts, **groups)
    shared_bytes = (2 * num_experts + groups["num_groups"] + counts["k"]) * DType.FLOAT32.itemsize
    yield Launch("router_topk", "router_topk", (num_tokens, 1, 1), (32, 1, 1), (parameters,), shared_bytes)


def _unsupported_logits(signature: Signature) -> str | None:
    num_experts = last_dim(signature, 0)
    return None if num_experts is not None and num_experts <= MAX_EXPERTS else _too_many(num_experts)


def _unsupported_stack(signature: Signature) -> str | None:
    num_experts = int(signature.attributes["num_experts"])
    return None if num_experts <= MAX_EXPERTS else _too_many(num_experts)


def _too_many(num_experts: int | None) -> str:
    return f"takes up to {MAX_EXPERTS} experts, not {num_experts}"


def _moe_combine(call: Call) -> Iterator[Launch]:
    x, weights = call.inputs
    assert x is not None
    num_tokens, num_chosen, width = x.shape
    threads = threads_for(width * x.dtype.itemsize // _VECTOR_BYTES, max_threads=256)
    arguments = (call.outputs[0], x, weights, num_chosen, width)
    yield Launch("moe_combine", f"moe_combine_{x.dtype}", (num_tokens, 1, 1), (threads, 1, 1), arguments)


def _moe_linear(format: WeightFormat | None, is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        x, ids, weight, bias = call.inputs
        assert x is not None
        assert ids is not None
        assert weight is not None
        products = [ExpertProduct(call.outputs[0], weight, bias)]
        special = _special_products(format, call, products, is_invariant)
        if special is not None:
            yield from special
            return
        num_experts = int(call.attributes["num_experts"])
        yield from expert_products(products, x, ids, num_experts, format, call.workspace, is_invariant=is_invariant)

    return launches


def _special_products(
    format: WeightFormat | None,
    call: Call,
    products: Sequence[ExpertProduct],
    is_invariant: bool,
    activation: Mapping[str, Any] | None = None,
) -> Iterator[Launch] | None:
    """The launches by kernels of one format or target, where these are the fastest, of one product, or of gate and up
    with their activation.
    """
    x, ids = call.inputs[:2]
    assert x is not None
    assert ids is not None
    num_experts, num_outputs = int(call.attributes["num_experts"]), call.outputs[0].shape[-1]
    weights, workspace, device = [product.weight for product in products], call.workspace, call.device
    sizes = x, ids, num_outputs, num_experts
    if takes_mxfp4_products(format, *sizes, weights, device, is_invariant=is_invariant):
        operands = products, x, ids, num_experts, workspace, device, activation
        return mxfp4_products(*operands, is_invariant=is_invariant)
    if not is_invariant and takes_wgmma(*sizes, format, weights, device):
        return wgmma_expert_products(products, x, ids, num_experts, format, workspace, activation)
    if format is not None and takes_quantized_experts(format, *sizes, weights, device, is_invariant=is_invariant):
        quantised = products, x, ids, num_experts, format, workspace, device, activation
        return quantized_expert_products(*quantised, is_invariant=is_invariant)
    return None


def _moe_linear_bytes(format: WeightFormat | None, call: Call) -> int:
    return _sorting_bytes(call) + _dequantized_bytes(format, call, 1)


def _moe_gate_up_silu(format: WeightFormat | None, is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    """Both products in one launch, that of gate to the output, and their gating; or everything in one launch."""

    def launches(call: Call) -> Iterator[Launch]:
        x, ids, w_gate, w_up, b_gate, b_up = call.inputs
        (out,) = call.outputs
        assert x is not None
        assert ids is not None
        assert w_gate is not None
        assert w_up is not None
        up = DeviceArray(call.workspace, out.dtype, out.shape)
        products = [ExpertProduct(out, w_gate, b_gate), ExpertProduct(up, w_up, b_up)]
        special = _special_products(format, call, products, is_invariant, call.attributes)
        if special is not None:
            yield from special
            return
        num_experts = int(call.attributes["num_experts"])
        workspace = call.workspace + align_up(up.nbytes, _ALIGNMENT)
        yield from expert_products(products, x, ids, num_experts, format, workspace, is_invariant=is_invariant)
        yield clamped_silu_mul(out, out, up, call.attributes)

    return launches


def _moe_gate_up_silu_bytes(format: WeightFormat | None, call: Call) -> int:
    up_bytes = align_up(call.outputs[0].nbytes, _ALIGNMENT)
    return max(up_bytes, _dequantized_bytes(format, call, 2)) + _sorting_bytes(call)


def _sorting_bytes(call: Call) -> int:
    return sorting_bytes(_num_pairs(call), int(call.attributes["num_experts"]))


def _dequantized_bytes(format: WeightFormat | None, call: Call, num_weights: int) -> int:
    x, ids = call.inputs[:2]
    assert x is not None
    assert ids is not None
    num_experts, num_outputs = int(call.attributes["num_experts"]), call.outputs[0].shape[-1]
    if format is None or not takes_wgmma(x, ids, num_outputs, num_experts, format, [], call.device):
        return 0
    return dequantized_expert_bytes((num_experts * num_outputs, x.shape[-1]), num_experts, num_weights, x.dtype)


def _num_pairs(call: Call) -> int:
    ids = call.inputs[1]
    assert ids is not None
    return ids.size


_OPERATORS: dict[str, tuple[Any, Callable[[WeightFormat | None, Call], int], tuple[str, ...]]] = {
    "moe_linear": (_moe_linear, _moe_linear_bytes, ("w",)),
    "moe_gate_up_silu": (_moe_gate_up_silu, _moe_gate_up_silu_bytes, ("w_gate", "w_up")),
}


def _kernels(operator: str, format: WeightFormat | None) -> Iterator[Kernel]:
    launches, workspace_bytes, weights = _OPERATORS[operator]
    shared: dict[str, Any] = {"workspace_bytes": partial(workspace_bytes, format), "supports": _unsupported_stack}
    if format is not None:
        shared["packs"] = dict.fromkeys(weights, weight_pack(format))
        shared["weight_formats"] = frozenset({format.name})
    name = "cuda" if format is None else f"cuda/{codes_of(format)}"
    invariant_name = "cuda/batch_invariant" if format is None else f"{name}_batch_invariant"
    rounds_weights = format is not None and is_dequantized(format)
    yield cuda_kernel(
        operator, launches(format, False), name=name, is_batch_invariant=False, rounds_weights=rounds_weights, **shared
    )
    yield cuda_kernel(operator, launches(format, True), name=invariant_name, priority=-1, **shared)


KERNELS = (
    cuda_kernel("router_topk", _router_topk, dtypes=frozenset({DType.FLOAT32}), supports=_unsupported_logits),
    cuda_kernel("moe_combine", _moe_combine),
    *(
        kernel
        for operator in _OPERATORS
        for format in (None, *EXPERT_FORMATS, MXFP4)
        for kernel in _kernels(operator, format)
    ),
)
