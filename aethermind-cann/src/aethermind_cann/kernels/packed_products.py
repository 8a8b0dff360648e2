"""Products with weights in fp8 and mxfp4, which remain in these formats in device memory.

Each product dequantises its weight by table lookups (`_packed_weights`), some rows of a large weight at a time.
torch_npu's products of quantised matrices (`npu_quant_matmul`) take int8 on Atlas A2 and A3, another format.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch

from aethermind.dispatch import Kernel
from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put
from aethermind_cann.kernels._packed_weights import PACKED_FORMATS, PackedFormat
from aethermind_cann.kernels.elementwise import gated_silu
from aethermind_cann.kernels.matrix import float32_product
from aethermind_cann.kernels.mixture import ExpertAssignments, moe_gate_up_silu, moe_linear
from aethermind_cann.run_memo import host_list

__all__ = ["KERNELS"]

_VALUES_AT_ONCE = 1 << 25
"""The maximum number of weight values that are dequantised at a time, which bounds temporary memory."""
_PRIORITY = 20
"""Above kernels for which weights are dequantised when a model is loaded."""


def _product(format: PackedFormat, x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, K] @ weight.T + bias in float32, [T, N]; `rows` [N, row_bytes] are the rows of the packed weight."""
    num_tokens, num_columns = x.shape
    out = torch.empty((num_tokens, len(rows)), dtype=torch.float32, device=x.device)
    step = max(1, _VALUES_AT_ONCE // max(1, num_columns))
    for begin in range(0, len(rows), step):
        matrix, scales = format.values(rows[begin : begin + step], num_columns, x.dtype)
        part = torch.empty((num_tokens, len(matrix)), dtype=torch.float32, device=x.device)
        float32_product(x, matrix, part)
        put(out[:, begin : begin + step], part if scales is None else part * scales)
    return out if bias is None else out + bias.float()


def _rows(format: PackedFormat, weight: torch.Tensor, num_columns: int) -> torch.Tensor:
    return weight.view(-1, format.row_bytes(num_columns))


def _linear(format: PackedFormat, inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, weight, bias = inputs
    put(outputs[0], _product(format, x, _rows(format, weight, x.shape[1]), bias))


def _gate_up_silu(format: PackedFormat, inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, *weights = inputs
    gate, up = (_product(format, x, _rows(format, weight, x.shape[1]), None) for weight in weights)
    put(outputs[0], gated_silu(gate, up))


def _multiply(
    format: PackedFormat,
    rows: torch.Tensor,
    assignments: ExpertAssignments,
    stack: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Multiply sorted rows with their experts' dequantised weights.

    With at most as many assignments as experts, it dequantises a weight for each assignment; else it computes one
    product per expert, whose number of rows is read on the host.
    """
    num_experts, num_columns = len(assignments.ends), rows.shape[1]
    experts = stack.view(num_experts, -1, format.row_bytes(num_columns))
    biases = None if bias is None else bias.view(num_experts, -1)
    out = torch.empty((len(rows), experts.shape[1]), dtype=torch.float32, device=rows.device)
    if len(rows) <= num_experts:
        step = max(1, _VALUES_AT_ONCE // max(1, experts.shape[1] * num_columns))
        for part in (slice(begin, begin + step) for begin in range(0, len(rows), step)):
            packed = experts.index_select(0, assignments.experts[part])
            matrices, scales = format.values(packed, num_columns, torch.float32)
            products = torch.bmm(rows[part, None].float(), matrices.transpose(1, 2))[:, 0]
            put(out[part], products if scales is None else products * scales)
        return out if biases is None else out + biases.index_select(0, assignments.experts).float()
    for expert, (begin, end) in enumerate(pairwise((0, *host_list(assignments.ends)))):
        if begin < end:
            own = None if biases is None else biases[expert]
            put(out[begin:end], _product(format, rows[begin:end], experts[expert], own))
    return out


def _kernels_of(format: PackedFormat) -> list[Kernel]:
    pack, name = format.pack(), format.format.name

    def kernel(operator: str, function: Any, *weights: str, **options: Any) -> Kernel:
        return plain_kernel(
            operator,
            function,
            name=f"torch {name}",
            priority=_PRIORITY,
            packs=dict.fromkeys(weights, pack),
            weight_formats=frozenset({name}),
            is_batch_invariant=False,
            **options,
        )

    multiply = partial(_multiply, format)
    return [
        kernel("linear", partial(_linear, format), "weight"),
        kernel("lm_head", partial(_linear, format), "weight", additions=frozenset({"bias"})),
        kernel("gate_up_silu", partial(_gate_up_silu, format), "w_gate", "w_up"),
        kernel("moe_gate_up_silu", partial(moe_gate_up_silu, multiply), "w_gate", "w_up"),
        kernel("moe_linear", partial(moe_linear, multiply), "w"),
    ]


KERNELS = [kernel for format in PACKED_FORMATS for kernel in _kernels_of(format)]
