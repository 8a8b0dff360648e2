"""Products of tokens with their experts: by torch_npu's grouped product, or by torch.

An assignment is a pair of a token and one of its A experts; there are T · A of them. Products are computed for the
assignments sorted by expert, so that the rows of an expert are adjacent. The order depends on `ids` only and is
computed on the device, once for all products of a layer. The grouped product reads the number of rows of each expert on
the device, too, so that its steps can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch_npu

from aethermind.dispatch import Signature
from aethermind_cann.kernels._kernel import Attributes, Function, Tensors, fused_kernel, plain_kernel, put
from aethermind_cann.kernels.elementwise import gated_silu
from aethermind_cann.kernels.matrix import product
from aethermind_cann.run_memo import host_list, memoised

__all__ = ["ExpertAssignments", "KERNELS", "moe_gate_up_silu", "moe_linear"]

_BY_ROWS = 0
"""`group_type` of products that differ in their numbers of rows."""
_ONE_OUTPUT = 2
"""`split_item` of outputs that are one tensor."""
_MAX_GROUPS, _MAX_SIZE = 1024, 65535
"""Limits of the grouped product by its documentation: groups, and the size of a last dim."""


class ExpertAssignments(NamedTuple):
    """The T · A assignments of a step, sorted by expert."""

    order: torch.Tensor
    """[T · A], int64: the index t · A + a of each assignment."""
    experts: torch.Tensor
    """[T · A], int32: the experts of the assignments, in ascending order."""
    ends: torch.Tensor
    """[E], int64: the end of each expert's assignments in the order (cumulative counts)."""

    def put(self, out: torch.Tensor, results: torch.Tensor) -> None:
        """Copy the results [T · A, N] of the assignments to `out` [T, A, N]."""
        out.flatten(0, 1).index_copy_(0, self.order, results.to(out.dtype))


Multiply = Callable[[torch.Tensor, ExpertAssignments, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""Multiplies the rows [T · A, K] of sorted assignments with their experts' weights [E · N, K], and adds the bias if
there is one: [T · A, N].
"""


def _sorted_assignments(ids: torch.Tensor, num_experts: int) -> ExpertAssignments:
    return memoised(("assignments", num_experts), ids, lambda: _sort_assignments(ids, num_experts))


def _sort_assignments(ids: torch.Tensor, num_experts: int) -> ExpertAssignments:
    experts, order = ids.flatten().sort(stable=True)
    number = torch.arange(num_experts, dtype=ids.dtype, device=ids.device)
    return ExpertAssignments(order, experts, torch.searchsorted(experts, number, right=True))


def _multiply(
    rows: torch.Tensor, assignments: ExpertAssignments, stack: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Multiply sorted rows with their experts' weights.

    With at most as many assignments as experts, it gathers a copy of the weights for each assignment; else it computes
    one product per expert, whose number of rows is read on the host.
    """
    num_experts = len(assignments.ends)
    weights = stack.view(num_experts, -1, stack.shape[1])
    biases = None if bias is None else bias.view(num_experts, -1)
    if len(rows) <= num_experts:
        gathered = weights.index_select(0, assignments.experts).transpose(1, 2)
        rows = rows[:, None].to(weights.dtype)
        if biases is None:
            return torch.bmm(rows, gathered)[:, 0]
        gathered_biases = biases.index_select(0, assignments.experts)[:, None].to(weights.dtype)
        return torch.baddbmm(gathered_biases, rows, gathered)[:, 0]
    out = torch.empty((len(rows), weights.shape[1]), dtype=rows.dtype, device=rows.device)
    for expert, (begin, end) in enumerate(pairwise((0, *host_list(assignments.ends)))):
        if begin < end:
            product(rows[begin:end], weights[expert], None if biases is None else biases[expert], out[begin:end])
    return out


def _npu_multiply(
    rows: torch.Tensor, assignments: ExpertAssignments, stack: torch.Tensor, _: torch.Tensor | None
) -> torch.Tensor:
    weights = stack.view(len(assignments.ends), -1, stack.shape[1]).transpose(1, 2)
    out: torch.Tensor = torch_npu.npu_grouped_matmul(
        [rows], [weights], group_list=assignments.ends, split_item=_ONE_OUTPUT, group_type=_BY_ROWS
    )[0]
    return out


def moe_gate_up_silu(multiply: Multiply, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, ids, w_gate, w_up, b_gate, b_up = inputs
    activation = {name: value for name, value in attributes.items() if name != "num_experts"}
    assignments = _sorted_assignments(ids, attributes["num_experts"])
    rows = x.index_select(0, torch.div(assignments.order, ids.shape[1], rounding_mode="floor"))
    gate, up = multiply(rows, assignments, w_gate, b_gate), multiply(rows, assignments, w_up, b_up)
    assignments.put(outputs[0], gated_silu(gate, up, **activation))


def moe_linear(multiply: Multiply, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, ids, weight, bias = inputs
    assignments = _sorted_assignments(ids, attributes["num_experts"])
    rows = x.flatten(0, 1).index_select(0, assignments.order)
    assignments.put(outputs[0], multiply(rows, assignments, weight, bias))


def _by_row(function: Function) -> Function:
    """One token at a time, for batch invariance."""

    def compute(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        x, ids, *weights = inputs
        for token in range(len(x)):
            current = slice(token, token + 1)
            function((x[current], ids[current], *weights), (outputs[0][current],), attributes)

    return compute


def _moe_combine(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, weights = inputs
    total = x[:, 0].float() * weights[:, :1]
    for index in range(1, x.shape[1]):
        total = torch.addcmul(total, x[:, index].float(), weights[:, index : index + 1])
    put(outputs[0], total)


def _take_experts(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, ids = inputs
    selected = ids[:, attributes["first"] :][:, : attributes["count"]]
    put(outputs[0], x.gather(1, selected.long()[..., None].expand(outputs[0].shape)))


def _unsupported_reason(signature: Signature) -> str | None:
    """Why the grouped product does not compute a call; its documentation gives biases of stacked weights no shape."""
    x, _, *weights = signature.inputs
    num_experts = signature.attributes["num_experts"]
    assert x is not None
    if any(weight is not None and len(weight.shape) == 1 for weight in weights):
        return "takes no biases"
    if not isinstance(num_experts, int) or num_experts > _MAX_GROUPS:
        return f"takes up to {_MAX_GROUPS} experts"
    num_columns = x.shape[-1]
    if not isinstance(num_columns, int) or num_columns > _MAX_SIZE:
        return f"takes rows of up to {_MAX_SIZE}"
    return None


def _product_kernels(operator: str, function: Callable[..., None]) -> list[Any]:
    plain: Function = partial(function, _multiply)
    options: dict[str, Any] = {"weight_formats": None}
    return [
        plain_kernel(operator, plain, is_batch_invariant=False, **options),
        plain_kernel(operator, _by_row(plain), name="torch by row", priority=-1, **options),
        fused_kernel(
            operator,
            "npu_grouped_matmul",
            partial(function, _npu_multiply),
            _unsupported_reason,
            is_batch_invariant=False,
        ),
    ]


KERNELS = [
    *_product_kernels("moe_gate_up_silu", moe_gate_up_silu),
    *_product_kernels("moe_linear", moe_linear),
    plain_kernel("moe_combine", _moe_combine),
    plain_kernel("take_experts", _take_experts),
]
