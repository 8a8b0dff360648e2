"""gate_up_silu with weights as they are stored: both projections and the gate in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind_cuda.kernels._common import cuda_kernel
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_GATE_UP = Projection("gate_up_silu", num_weights=2, group_chunks=2, few_tokens=32)


def _launches(is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        x, w_gate, w_up = call.inputs
        (out,) = call.outputs
        assert x is not None
        sizes = x.shape[0], out.shape[1], x.shape[1]
        arguments = (out, x, w_gate, w_up, *sizes)
        yield _GATE_UP.launch(str(x.dtype), sizes, arguments, x.dtype, is_invariant=is_invariant)

    return launches


KERNELS = (
    cuda_kernel("gate_up_silu", _launches(is_invariant=False), is_batch_invariant=False),
    cuda_kernel("gate_up_silu", _launches(is_invariant=True), name="cuda/by_token", priority=-1),
)
