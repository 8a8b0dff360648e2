"""Reductions by torch: sum, mean, prod, max, min and argmax over dims, and softmax over the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aethermind.ops.shape_inference import positive_dims
from aethermind_cann.kernels._kernel import Attributes, Tensors, in_float32, plain_kernel, put

__all__ = ["KERNELS"]


def _over_rows(reduce: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    """Apply `reduce` to x with the reduced dims flattened into the last one.

    Otherwise torch's order of the terms would depend on the sizes of the other dims, so the bits would, too.
    """
    reduced = sorted(positive_dims(dim, x.dim())) if dim else list(range(x.dim()))
    kept = [position for position in range(x.dim()) if position not in reduced]
    return reduce(x.permute(*kept, *reduced).flatten(len(kept)) if reduced else x[None])


def _reduction(reduce: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors, Tensors, Attributes], None]:
    def compute(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        result = _over_rows(reduce, inputs[0].float(), attributes["dim"])
        put(outputs[0], result.reshape(outputs[0].shape))

    return compute


def _argmax(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    put(outputs[0], inputs[0].argmax(attributes["dim"], keepdim=attributes["keepdim"]))


_ADDITIONS: Any = {"additions": frozenset({"dim", "keepdim"})}

KERNELS = [
    plain_kernel("sum", _reduction(lambda x: x.sum(-1)), **_ADDITIONS),
    plain_kernel("mean", _reduction(lambda x: x.mean(-1)), **_ADDITIONS),
    plain_kernel("prod", _reduction(lambda x: x.prod(-1))),
    plain_kernel("max", _reduction(lambda x: x.amax(-1)), **_ADDITIONS),
    plain_kernel("min", _reduction(lambda x: x.amin(-1)), **_ADDITIONS),
    plain_kernel("argmax", _argmax, **_ADDITIONS),
    plain_kernel("softmax", in_float32(lambda x: x.softmax(-1))),
]
