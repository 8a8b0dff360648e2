"""Range checks of index inputs, called before eager operators, because kernels do not check indices.

Each check takes the index arrays and the shapes of all inputs and outputs, by name (`Operator.check`), and raises
OperatorError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from aethermind.errors import OperatorError
from aethermind.ops.operator import Array

__all__ = [
    "FREED_KEYS_MULTIPLE",
    "Shapes",
    "check_blocks",
    "check_heads",
    "check_offsets",
    "check_shifted_blocks",
    "check_slots",
    "check_tokens_of_rows",
    "index_check",
    "require_below",
]

FREED_KEYS_MULTIPLE = 128
"""Blocks may be freed that end before the first key in the window of any query, rounded down to a multiple of this."""

Shapes = Mapping[str, tuple[int, ...]]
Check = Callable[[Mapping[str, Array], Shapes], None]


def index_check(table: str, indices: str, *, axis: int = 0) -> Check:
    """Return a check that every value of `indices` is a valid index along an axis of `table`."""
    return lambda arrays, shapes: require_below(indices, arrays[indices], shapes[table][axis])


def check_slots(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that each slot of `slot_mapping` is in `k_cache` or negative."""
    num_blocks, _, block_size, _ = shapes["k_cache"]
    slots = arrays["slot_mapping"]
    if slots.size and int(slots.max()) >= num_blocks * block_size:
        raise OperatorError(
            f"slot_mapping holds {int(slots.max())}, but the cache has {num_blocks * block_size} slots."
        )


def check_tokens_of_rows(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that `cu_tokens` are offsets of rows in `tokens`, and that tokens are columns of `logits`."""
    tokens = arrays["tokens"]
    end = check_offsets("cu_tokens", arrays["cu_tokens"], len(tokens))
    require_below("tokens", tokens[:end], shapes["logits"][1])


def check_blocks(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that every sequence has at least as many keys as queries, in blocks that are in `k_cache`.

    A table entry may be -1 if its block ends before the first key in the window of any query of the sequence, rounded
    down to a multiple of FREED_KEYS_MULTIPLE.
    """
    check_heads(shapes["q"][1], shapes["k_cache"][1])
    cu_seqlens_q, num_keys, tables = arrays["cu_seqlens_q"], arrays["seqlens_k"], arrays["block_tables"]
    check_offsets("cu_seqlens_q", cu_seqlens_q, shapes["q"][0])
    num_queries = np.diff(cu_seqlens_q)
    if bool((num_keys < num_queries).any()):
        raise OperatorError("seqlens_k has sequences with fewer keys than queries; a query's own key counts.")
    num_blocks, _, block_size, _ = shapes["k_cache"]
    if block_size == 0:
        raise OperatorError("k_cache has blocks without slots.")
    num_used = np.where(num_queries > 0, -(-num_keys // block_size), 0)
    if num_used.size and int(num_used.max()) > tables.shape[1]:
        raise OperatorError(
            f"seqlens_k holds {int(num_keys.max())} keys, but block_tables has {tables.shape[1]} blocks of "
            f"{block_size}."
        )
    window = int(arrays.get("window", np.int64(0)))
    num_freed = np.zeros_like(num_used)
    if window > 0:
        first_visible = np.maximum(num_keys - num_queries - window + 1, 0)
        num_freed = first_visible // FREED_KEYS_MULTIPLE * FREED_KEYS_MULTIPLE // block_size
    column = np.arange(tables.shape[1])
    is_read = (column < num_used[:, None]) & ((column >= num_freed[:, None]) | (tables != -1))
    require_below("block_tables", tables[is_read], num_blocks)


def check_shifted_blocks(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Check that `blocks` are distinct blocks of `k_cache`, with at least `num_tokens` slots each."""
    num_blocks, _, block_size, _ = shapes["k_cache"]
    require_below("blocks", arrays["blocks"], num_blocks)
    require_below("num_tokens", arrays["num_tokens"], block_size + 1)
    if len(np.unique(arrays["blocks"])) < len(arrays["blocks"]):
        raise OperatorError("blocks holds a block twice; the keys of a block are rotated once.")


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise OperatorError unless the number of query heads is a multiple of that of key heads."""
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise OperatorError(f"{num_heads} query heads are not a multiple of {num_kv_heads} key heads.")


def require_below(name: str, values: Array, bound: int) -> None:
    """Raise OperatorError unless all values are in 0 … `bound` - 1."""
    # Negative numbers are large when read as unsigned, so one comparison is enough.
    if values.size and int(values.view(f"u{values.itemsize}").max()) >= bound:
        wrong = values[(values < 0) | (values >= bound)]
        raise OperatorError(f"{name} holds {int(wrong[0])}, which is not from 0 to {bound - 1}.")


def check_offsets(name: str, offsets: Array, count: int) -> int:
    """Raise OperatorError unless `offsets` ascend and are in 0 … `count`; return the last one."""
    if int(offsets[0]) < 0 or int(offsets[-1]) > count or bool((offsets[1:] < offsets[:-1]).any()):
        raise OperatorError(
            f"{name} should not decrease, begin at 0 or later and end at {count} at most, got {offsets}."
        )
    return int(offsets[-1])
