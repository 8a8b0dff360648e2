"""Prefill attention by kernels that Triton compiled ahead of time (csrc/triton).

They use tcgen05, which the CUDA C++ prefill kernel does not, and replace its launch for the same sequences and
operands, without split-KV. Other launches are unchanged, and so is prefill with few tiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind_cuda.kernels._heads import all_present, last_dim
from aethermind_cuda.kernels._paged_attention import fills_device, tensor_core_launches
from aethermind_cuda.launch import Call, KernelFunction, Launch
from aethermind_cuda.library import Cubins
from aethermind_cuda.probe import capability_of_first, probe_driver
from aethermind_cuda.targets import best_target

__all__ = ["first_capability", "with_triton"]

_PREFIX = "paged_attention_prefill_triton"


class _Compiled(NamedTuple):
    """A kernel of the manifest; `rows` is the tile height of a program."""

    name: str
    threads: int
    shared_bytes: int
    rows: int


def with_triton(kernel: Kernel) -> Kernel:
    """A variant of a `paged_attention` kernel with Triton's prefill, preferred to it."""
    kernel_function = kernel.function
    assert isinstance(kernel_function, KernelFunction)
    function: Any = kernel_function._replace(launches=_launches)
    return dataclasses.replace(
        kernel,
        name="cuda/triton",
        priority=kernel.priority + 1,
        function=function,
        supports=_unsupported_reason,
        additions=frozenset(),
    )


@cache
def first_capability() -> tuple[int, int] | None:
    """The compute capability of GPU 0; None where there is no GPU."""
    return capability_of_first() if probe_driver().is_available else None


@cache
def _cubins() -> Cubins:
    return Cubins()


def _find(dtype: str, head_dim: int, capability: tuple[int, int]) -> _Compiled | None:
    name = f"{_PREFIX}_{dtype}_{head_dim}"
    targets = _cubins().operators.get(name, {"targets": {}})["targets"]
    target = best_target(targets, capability)
    if target is None:
        return None
    launch = targets[target]["kernels"][name]
    return _Compiled(name, launch["threads"], launch["dynamic_shared_bytes"], launch["rows"])


def _unsupported_reason(signature: Signature) -> str | None:
    head_dim, capability = last_dim(signature, 0), first_capability()
    if capability is None:
        return "no GPU was found whose kernels Triton could have compiled"
    if head_dim is None or _find(str(signature.dtype), head_dim, capability) is None:
        heads = f"heads of {head_dim} elements of {signature.dtype}"
        return f"Triton compiled no kernel for {heads} and compute capability {capability[0]}.{capability[1]}"
    k_cache = signature.inputs[1]
    block_size = None if k_cache is None else k_cache.shape[2]
    if not isinstance(block_size, int) or not _is_power_of_two(block_size):
        return f"takes cache blocks of a power of two of tokens, not of {block_size}"
    scale = signature.attributes["scale"]
    return None if isinstance(scale, (int, float)) and scale > 0 else f"takes positive scales, not {scale}"


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _launches(call: Call) -> Iterator[Launch]:
    # Another GPU of this machine may have another capability than the first.
    compiled = _find(str(call.outputs[0].dtype), call.outputs[0].shape[-1], call.device.compute_capability)
    if compiled is None or not fills_device(call):
        yield from tensor_core_launches(call)
    else:
        yield from tensor_core_launches(call, partial(_launch, compiled))


def _launch(compiled: _Compiled, call: Call, decode_rows: int) -> Launch:
    """Arguments in the order of the Triton function, then its two empty scratch buffers.

    Sequences of at most `decode_rows` rows, queries times the heads of a GQA group, are those of the decode kernel.
    """
    q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables = all_present(call.inputs)
    (num_tokens, num_heads, _), (_, num_kv_heads, block_size, _) = q.shape, k_cache.shape
    num_sequences, blocks_per_sequence = block_tables.shape
    arguments = (
        *(call.outputs[0], q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables),
        float(call.attributes["scale"]) / math.log(2),
        *(num_sequences, num_heads, num_kv_heads, block_size.bit_length() - 1, blocks_per_sequence),
        *(int(call.attributes["window"]), decode_rows),
        *(None, None),
    )
    tiles = num_tokens * num_heads // num_kv_heads // compiled.rows + num_sequences
    grid, block = (tiles * num_kv_heads, 1, 1), (compiled.threads, 1, 1)
    # Prefill runs outside of CUDA graphs, where overlapping launches do not pay off.
    return Launch(
        compiled.name, compiled.name, grid, block, arguments, compiled.shared_bytes, is_dependent_launch=False
    )
