"""linear, lm_head and gate_up_silu with weights in codes: a kernel for each format of the core that has scales in one
level."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind.dispatch import Kernel
from aethermind.ops.weight_format import CHECKPOINT_FORMAT_NAMES, FORMAT_NAMES, WeightFormat, parse_format
from aethermind_cuda.coded_weights import GROUP_CHUNKS, CodedLayout, coded_pack
from aethermind_cuda.kernels._common import cuda_kernel
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_LINEAR = Projection("linear_quantized", num_weights=1, group_chunks=GROUP_CHUNKS)
_GATE_UP = Projection("gate_up_silu_quantized", num_weights=2, group_chunks=GROUP_CHUNKS)
_OPERATORS = {
    "linear": (_LINEAR, ("weight",)),
    "lm_head": (_LINEAR, ("weight",)),
    "gate_up_silu": (_GATE_UP, ("w_gate", "w_up")),
}


def _launches(projection: Projection, format: WeightFormat, is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        x, *operands = call.inputs
        (out,) = call.outputs
        assert x is not None
        (num_tokens, num_inputs), num_outputs = x.shape, out.shape[1]
        sizes = num_tokens, num_outputs, num_inputs
        layout = CodedLayout(format, (num_outputs, num_inputs))
        if projection is _LINEAR:
            weight, *biases = operands
            arguments = (out, x, weight, biases[0] if biases else None, *sizes, out.dtype is not x.dtype)
        else:
            arguments = (out, x, *operands, *sizes)
        arguments = (*arguments, layout.num_blocks, layout.log2_chunks, layout.shift)
        suffix = f"int{format.bits}_{x.dtype}"
        yield projection.launch(suffix, sizes, arguments, x.dtype, is_invariant=is_invariant)

    return launches


def _kernels(operator: str, format: WeightFormat) -> tuple[Kernel, Kernel]:
    projection, weights = _OPERATORS[operator]
    pack = coded_pack(format)

    def kernel(name: str, priority: int, is_invariant: bool) -> Kernel:
        return cuda_kernel(
            operator,
            _launches(projection, format, is_invariant),
            name=name,
            priority=priority,
            packs=dict.fromkeys(weights, pack),
            weight_formats=frozenset({format.name}),
            is_batch_invariant=is_invariant,
        )

    name = f"cuda/int{format.bits}"
    return kernel(name, 0, is_invariant=False), kernel(f"{name}_by_token", -1, is_invariant=True)


_FORMATS = tuple(
    format
    for name in (*FORMAT_NAMES, *CHECKPOINT_FORMAT_NAMES)
    if (format := parse_format(name)) and not format.super_block
)

KERNELS = tuple(kernel for operator in _OPERATORS for format in _FORMATS for kernel in _kernels(operator, format))
