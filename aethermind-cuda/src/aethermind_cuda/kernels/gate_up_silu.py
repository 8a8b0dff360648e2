"""gate_up_silu with weights as they are stored: both projections and the gate in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind_cuda.kernels._common import cuda_kernel
from aethermind_cuda.kernels._projection import projection
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_GROUP_CHUNKS = 2


def _launches(is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        x, w_gate, w_up = call.inputs
        (out,) = call.outputs
        assert x is not None
        sizes = x.shape[0], out.shape[1], x.shape[1]
        yield projection(
            "gate_up_silu",
            str(x.dtype),
            sizes,
            (out, x, w_gate, w_up, *sizes),
            dtype=x.dtype,
            group_chunks=_GROUP_CHUNKS,
            num_weights=2,
            is_invariant=is_invariant,
        )

    return launches


KERNELS = (
    cuda_kernel("gate_up_silu", _launches(is_invariant=False), is_batch_invariant=False),
    cuda_kernel("gate_up_silu", _launches(is_invariant=True), name="cuda/by_token", priority=-1),
)
