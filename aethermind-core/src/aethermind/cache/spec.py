"""Sizes of a KV cache: bytes and tokens of a block, blocks of a sequence, and the block sizes of the three layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, Self

from aethermind.cache.groups import LayerGroup, max_window_blocks
from aethermind.cache.layers import LayerCache, Paged, attention_of, recurrent_of, source_layer
from aethermind.cache.recurrent_states import NUM_RESERVED_SLOTS
from aethermind.errors import InvalidArgumentError

__all__ = ["CacheLayout", "KVCacheSpec", "spec_for_layout"]


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The layers, dtype and block size of a KV cache.

    `dtype_name` is a dtype's full name (`float32`, `bfloat16`, `float8_e4m3fn`, `int8`, `int4`): the first
    number in it is its width in bits. Raises `InvalidArgumentError` for a cache without layers, a block size below 1,
    a name without a width, or groups that do not divide the layers as `groups` says.
    """

    layers: tuple[LayerCache, ...]
    dtype_name: str
    block_size: int
    """Tokens in a block."""
    scale_bits: int = 0
    """Bits of the scale that a quantised cache stores with the key, and with the value, of each token and kv head."""
    groups: tuple[LayerGroup, ...] = ()
    """Groups of the layers that keep something: group 0 keeps all tokens, each other group the tokens of
    its window. With several groups all these layers have rows of one shape. Empty: all layers are one group."""
    max_new_tokens: int = 1
    """With several groups, the most tokens of one step that `num_blocks_for` takes into account. A step adds more
    tokens where more blocks are free, see `reservations.reserve_chunk`."""
    num_slots: int = 0
    """State slots of a model with recurrent layers, with the null slot 0 and snapshots (see `recurrent_states`)."""
    num_checkpoints: int = 0
    """How many of the slots are for checkpoints of sequences whose drafts are verified, see `StateSlots.checkpoint`."""
    num_snapshots: int = 0
    """The last slots, which keep states for the prefix cache (see `recurrent_states`)."""
    num_host_slots: int = 0
    """State slots in host memory, numbered after those of the device, for the states of swapped sequences."""

    def __post_init__(self) -> None:
        if not self.layers or self.block_size < 1:
            raise InvalidArgumentError(
                f"A KV cache of {len(self.layers)} layers in blocks of {self.block_size} tokens holds nothing; "
                "both must be 1 or more."
            )
        if re.search(r"\d", self.dtype_name) is None:
            raise InvalidArgumentError(
                f"KV cache dtype {self.dtype_name!r} has no width in its name; name one such as bfloat16."
            )
        for layer in range(len(self.layers)):
            source_layer(self.layers, layer)
        cached_layers = [layer for layer, entry in enumerate(self.layers) if entry.rows]
        if not self.groups:
            object.__setattr__(self, "groups", (LayerGroup(0, tuple(cached_layers)),))
        grouped = sorted(layer for group in self.groups for layer in group.layers)
        shapes = {tuple(self.layers[layer].rows.items()) for layer in cached_layers}
        if (
            grouped != cached_layers
            or self.groups[0].window
            or any(group.window < 1 for group in self.groups[1:])
            or (len(self.groups) > 1 and len(shapes) > 1)
        ):
            raise InvalidArgumentError(
                f"Groups {self.groups} do not divide the layers {cached_layers}: name every layer once, in group 0 if "
                "it keeps all tokens, else in a group with a window, and one group if shapes differ."
            )

    @classmethod
    def uniform(
        cls, num_layers: int, num_kv_heads: int, head_dim: int, dtype_name: str, block_size: int, scale_bits: int = 0
    ) -> Self:
        """Return the spec of a model whose layers all keep keys and values of one shape."""
        return cls((Paged(num_kv_heads, head_dim, head_dim),) * num_layers, dtype_name, block_size, scale_bits)

    @property
    def num_layers(self) -> int:
        """The number of layers of the model, including those without a cache."""
        return len(self.layers)

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer keeps a state of each sequence."""
        return any(recurrent_of(entry) is not None for entry in self.layers)

    @property
    def has_attention(self) -> bool:
        """Whether any layer keeps something of each token; otherwise blocks take no bytes."""
        return any(attention_of(entry) is not None for entry in self.layers)

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of one sequence's state in each state tensor, by the name of the tensor, such as `conv_state.3`."""
        states = ((layer, recurrent_of(entry)) for layer, entry in enumerate(self.layers))
        return {
            f"{name}.{layer}": shape for layer, state in states if state is not None for name, shape in state.tensors
        }

    @property
    def num_sequence_slots(self) -> int:
        """State slots that sequences can have: all but the null slot and those of snapshots."""
        return max(0, self.num_slots - self.num_snapshots - 1)

    @property
    def max_sequences(self) -> int:
        """Requests that can run at once in a model with recurrent layers."""
        return self.num_slots - self.num_snapshots - self.num_checkpoints - NUM_RESERVED_SLOTS

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that the state of one sequence takes, in float32."""
        return 4 * sum(map(prod, self.state_shapes.values()))

    @property
    def bits_per_value(self) -> int:
        """Bits of one stored element."""
        return int(re.findall(r"\d+", self.dtype_name)[0])

    @property
    def tensor_layers(self) -> tuple[int, ...]:
        """For each position, the layer whose number is in the names of its tensors: that of the first group with a
        layer at that position. With one group these are all layers that keep something.
        """
        size = max(len(group.layers) for group in self.groups)
        return tuple(
            next(group.layers[position] for group in self.groups if position < len(group.layers))
            for position in range(size)
        )

    def group_and_position(self, layer: int) -> tuple[int, int]:
        """Return the number of the group that holds a layer's keys and values, and the layer's position in the group.

        The layer must keep some, or share an earlier layer's: see `layers.attention_of`.
        """
        layer = source_layer(self.layers, layer)
        index = next(index for index, group in enumerate(self.groups) if layer in group.layers)
        return index, self.groups[index].layers.index(layer)

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each group but group 0."""
        return tuple(group.window for group in self.groups[1:])

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in a block: a row in the tensors of each position. With one group, these are the
        bytes of all layers.
        """
        rows = [row for layer in self.tensor_layers for row in self.layers[layer].rows.values()]
        return sum(-(-heads * (dim * self.bits_per_value + self.scale_bits) // 8) for heads, dim in rows)

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes in all tensors."""
        return self.bytes_per_token * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        """The most blocks that a sequence holds while it grows to `num_tokens`, in all groups together."""
        num_blocks = -(-num_tokens // self.block_size)
        if len(self.groups) == 1:
            return num_blocks
        return num_blocks + sum(min(num_blocks, limit) for limit in self._max_window_blocks)

    def num_tokens_in(self, num_blocks: int) -> int:
        """The tokens of the longest sequence that `num_blocks` blocks hold: the inverse of `num_blocks_for`."""
        limits = sorted(self._max_window_blocks)
        # With each block in group 0, a sequence takes a block in each further group that is below its limit.
        num_in_group_0, num_left, last_limit = 0, num_blocks, 0
        for index, limit in enumerate(limits):
            num_growing = len(limits) - index + 1
            num_added = min(limit - last_limit, num_left // num_growing)
            num_in_group_0, num_left = num_in_group_0 + num_added, num_left - num_added * num_growing
            if num_added < limit - last_limit:
                return num_in_group_0 * self.block_size
            last_limit = limit
        return (num_in_group_0 + num_left) * self.block_size

    def table_width(self, num_tokens: int) -> int:
        """Entries of the block table of `num_tokens` tokens; the tables of all groups are of one length."""
        return -(-num_tokens // self.block_size)

    @property
    def _max_window_blocks(self) -> list[int]:
        return [max_window_blocks(window, self.block_size, self.max_new_tokens) for window in self.windows]


CacheLayout = Literal["paged", "cell", "static"]
"""
- paged: blocks of the spec's size, allocated as a sequence grows
- cell: blocks of one token, so that any token can be dropped or moved by itself
- static: blocks of a whole context, one for each sequence
"""


def spec_for_layout(spec: KVCacheSpec, layout: CacheLayout, max_model_len: int) -> KVCacheSpec:
    """Return the spec with the block size of `layout`. Raises `InvalidArgumentError` for an unknown layout."""
    block_sizes = {"paged": spec.block_size, "cell": 1, "static": max_model_len}
    if layout not in block_sizes:
        raise InvalidArgumentError(f"KV cache layout is {layout!r} but must be one of {', '.join(block_sizes)}.")
    return replace(spec, block_size=block_sizes[layout])
