"""Cached keys turned to the positions where their tokens stand now, on the device that holds them.

The cache decides which blocks, and by how much (`cache.shift`); here is the graph that does it for all layers, and who
runs it before the step that reads the keys. The angles are those of the distances, with the model's own frequencies;
what YaRN multiplies cosines and sines by is in the keys already and stays 1 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aethermind.cache.positions import BlockShift
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.executor import Executor
from aethermind.hal.dtype import DType
from aethermind.model.rope import FREQUENCIES, RopeConfig, inverse_frequencies
from aethermind.ops.dims import SymDim
from aethermind.ops.schema import CODE_DTYPES

if TYPE_CHECKING:
    from aethermind.cache.spec import KVCacheSpec

__all__ = ["apply_rope_shift", "write_key_shift"]


def write_key_shift(
    builder: GraphBuilder, rope: RopeConfig, max_model_len: int, cache: KVCacheSpec, num_blocks: int
) -> None:
    """Write the graph: inputs shifted_blocks i32[B], shifted_tokens i32[B] and shift_deltas i64[B]; no outputs."""
    count = SymDim("B")
    blocks = builder.input("shifted_blocks", DType.INT32, (count,))
    num_tokens = builder.input("shifted_tokens", DType.INT32, (count,))
    deltas = builder.input("shift_deltas", DType.INT64, (count,))
    inv_freq, _ = inverse_frequencies(rope, max_model_len)
    table = builder.op("rope_table", deltas, builder.constant(FREQUENCIES, inv_freq), scale=1.0)
    slots = (num_blocks, cache.num_key_value_heads, cache.block_size)
    dtype = DType.parse(cache.dtype_name)
    for layer in range(cache.num_layers):
        keys = builder.state(f"k_cache.{layer}", dtype, (*slots, cache.head_dim))
        if dtype in CODE_DTYPES:
            scales = builder.state(f"k_scale.{layer}", DType.FLOAT32, slots)
            builder.op("shift_keys_quantized", keys, blocks, num_tokens, table, scales)
        else:
            builder.op("shift_keys", keys, blocks, num_tokens, table)


def apply_rope_shift(executor: Executor, shifts: Sequence[BlockShift]) -> None:
    """Run that graph over `shifts`, as many at a time as its inputs hold: enqueued like a step."""
    inputs = executor.host_inputs
    blocks, num_tokens, deltas = (inputs[name] for name in ("shifted_blocks", "shifted_tokens", "shift_deltas"))
    for begin in range(0, len(shifts), len(blocks)):
        some = shifts[begin : begin + len(blocks)]
        executor.synchronize()  # the inputs of the run before are read no more
        blocks[: len(some)] = [shift.block for shift in some]
        num_tokens[: len(some)] = [shift.num_tokens for shift in some]
        deltas[: len(some)] = [shift.delta for shift in some]
        executor.run(tuple(len(some) if name == "B" else 0 for name in executor.plan.symbols))
