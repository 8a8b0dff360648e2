"""The sum of the parts of K that blocks have summed (`csrc/split_k_reduce.cu`)."""

from __future__ import annotations

from aethermind.hal.dtype import DType
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.launch import DeviceArray, Launch

__all__ = ["split_k_reduce"]

_SUM_THREADS = 256


def split_k_reduce(out: DeviceArray, partials: DeviceArray, bias: DeviceArray | None, dtype: DType) -> Launch:
    """out = the sum of `partials` [splits, weights, T, N] in the order of K, with SwiGLU of two weights, and bias."""
    num_splits, num_weights, num_tokens, num_outputs = partials.shape
    entry = f"split_k_reduce{'_silu' if num_weights > 1 else ''}_{dtype}"
    arguments = (out, partials, bias, num_tokens, num_outputs, out.dtype is not dtype, num_splits)
    grid = div_up(num_outputs, _SUM_THREADS), num_tokens, 1
    return Launch("split_k_reduce", entry, grid, (_SUM_THREADS, 1, 1), arguments)
