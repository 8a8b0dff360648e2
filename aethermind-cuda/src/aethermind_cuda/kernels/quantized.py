"""linear, lm_head and gate_up_silu with weights in codes: a kernel for each format that the core names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind.dispatch import Kernel
from aethermind.ops.weight_format import CHECKPOINT_FORMAT_NAMES, FORMAT_NAMES, WeightFormat, parse_format
from aethermind_cuda.coded_weights import GROUP_CHUNKS, CodedLayout, coded_pack
from aethermind_cuda.kernels._common import cuda_kernel
from aethermind_cuda.kernels._projection import projection
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_WEIGHTS = {"linear": ("weight",), "lm_head": ("weight",), "gate_up_silu": ("w_gate", "w_up")}


def _launches(operator: str, format: WeightFormat, is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    entry = "gate_up_silu" if operator == "gate_up_silu" else "linear"

    def launches(call: Call) -> Iterator[Launch]:
        x, *rest = call.inputs
        (out,) = call.outputs
        assert x is not None
        (num_tokens, num_inputs), num_outputs = x.shape, out.shape[1]
        sizes = num_tokens, num_outputs, num_inputs
        layout = CodedLayout(format, (num_outputs, num_inputs))
        if entry == "linear":
            bias = rest[1] if len(rest) > 1 else None
            arguments = (out, x, rest[0], bias, *sizes, out.dtype is not x.dtype)
        else:
            arguments = (out, x, *rest, *sizes)
        yield projection(
            f"{entry}_quantized",
            f"int{format.bits}_{x.dtype}",
            sizes,
            (*arguments, layout.num_blocks, layout.log2_chunks, layout.shift),
            dtype=x.dtype,
            group_chunks=GROUP_CHUNKS,
            num_weights=len(_WEIGHTS[operator]),
            is_invariant=is_invariant,
        )

    return launches


def _kernels(operator: str, format: WeightFormat) -> tuple[Kernel, Kernel]:
    pack = coded_pack(format)

    def kernel(name: str, priority: int, is_invariant: bool) -> Kernel:
        return cuda_kernel(
            operator,
            _launches(operator, format, is_invariant),
            name=name,
            priority=priority,
            packs=dict.fromkeys(_WEIGHTS[operator], pack),
            weight_formats=frozenset({format.name}),
            is_batch_invariant=is_invariant,
        )

    return kernel("cuda", 0, is_invariant=False), kernel("cuda/by_token", -1, is_invariant=True)


_FORMATS = tuple(format for name in (*FORMAT_NAMES, *CHECKPOINT_FORMAT_NAMES) if (format := parse_format(name)))

KERNELS = tuple(kernel for operator in _WEIGHTS for format in _FORMATS for kernel in _kernels(operator, format))
