"""Groups of layers that keep the same tokens: all of them, or those that a sliding window can still see.

Every group has a block table of its own for each sequence, and all groups take blocks from one pool. All groups have
the same number of layer positions (a short group leaves some unused) and every position stores the same shape per
token: a block is entry b of the first dim of the tensors of all positions, whichever group holds it. Blocks are
therefore copied, swapped and saved by their numbers alone, as in a cache of one group. (vLLM: hybrid KV cache manager.)

Group 0 keeps all tokens. Layers with a window may be in group 0, too, where that makes groups of equal size; their
window is then a mask only. The table of a further group has as many entries as that of group 0, but its leading blocks,
which no later query sees, are freed: these entries are `FREED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aethermind.cache.layers import LayerCache, Window, attention_of

__all__ = [
    "FREED",
    "LayerGroup",
    "group_layers",
    "live_blocks",
    "max_window_blocks",
    "num_freeable_blocks",
    "num_hidden_blocks",
]

FREED = -1
"""Entry of a block table whose block was freed, because the window no longer covers it."""

_KEY_BLOCK = 128
"""Kernels may read keys in blocks of up to this many, and mask those outside the window."""

_SLACK = 128
"""Number of tokens by which the freeing of a window's blocks is delayed. A sequence may drop its last tokens, those of
rejected drafts or of a failed step, and needs the earlier blocks again then."""

_MAX_GROUPS = 8
"""The most groups of a model: the block tables and slots of each group cost time in each step."""

_MIN_SAVING = 0.1
"""The fraction of the cache's bytes that groups must save: below it, their time per step is not worth it."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table.

    Attributes:
        window: queries of these layers see the last `window` tokens, and blocks before these are freed; 0: all.
        layers: the layer at each position.
    """

    window: int
    layers: tuple[int, ...]


def num_hidden_blocks(num_tokens: int, window: int, block_size: int) -> int:
    """Return how many leading blocks no query from index `num_tokens` on reads, in a group with a window."""
    first_seen = max(num_tokens - window + 1, 0)
    return first_seen // _KEY_BLOCK * _KEY_BLOCK // block_size


def num_freeable_blocks(num_tokens: int, window: int, block_size: int) -> int:
    """Return how many leading blocks a sequence of `num_tokens` tokens frees in a group with a window."""
    return num_hidden_blocks(num_tokens - _SLACK, window, block_size)


def max_window_blocks(window: int, block_size: int, max_new_tokens: int) -> int:
    """Return the most blocks that one sequence holds in a group with a window, with `max_new_tokens` reserved."""
    num_partial = 1 if _KEY_BLOCK % block_size == 0 else 2  # a window need not begin and end at block boundaries
    num_tokens = max_new_tokens + window + _SLACK + _KEY_BLOCK - 2
    return (num_tokens + num_partial * (block_size - 1)) // block_size


def group_layers(
    layers: Sequence[LayerCache], block_size: int, max_model_len: int, max_new_tokens: int
) -> tuple[LayerGroup, ...]:
    """Group the layers of a model so that a sequence of `max_model_len` tokens takes the fewest bytes.

    `max_new_tokens` is the most tokens that a step adds to a sequence. All layers are one group if the shapes of their
    rows differ, or if groups would save less than a tenth of the bytes.
    """
    cached_layers = [layer for layer, entry in enumerate(layers) if entry.rows]
    max_blocks = -(-max_model_len // block_size)
    best: tuple[LayerGroup, ...] = (LayerGroup(0, tuple(cached_layers)),)
    lowest_cost = (1 - _MIN_SAVING) * len(cached_layers) * max_blocks
    if len({tuple(layers[layer].rows.items()) for layer in cached_layers}) > 1:
        return best
    windows = {layer: _window_of(layers[layer], max_model_len) for layer in cached_layers}
    num_full_attention = sum(window == 0 for window in windows.values())
    for group_size in range(max(num_full_attention, 1), len(cached_layers)):
        groups = _groups_of(windows, group_size)
        window_blocks = (max_window_blocks(group.window, block_size, max_new_tokens) for group in groups[1:])
        # In units of one layer's bytes per block: a block of any group takes `group_size` of them.
        cost = group_size * (max_blocks + sum(min(max_blocks, count) for count in window_blocks))
        if len(groups) <= _MAX_GROUPS and cost < lowest_cost:
            best, lowest_cost = groups, cost
    return best


def _window_of(entry: LayerCache, max_model_len: int) -> int:
    """Return the window of a layer that can free blocks; 0 if the layer sees all tokens of every sequence."""
    attention = attention_of(entry)
    return attention.window if isinstance(attention, Window) and 0 < attention.window < max_model_len else 0


def _groups_of(windows: dict[int, int], group_size: int) -> tuple[LayerGroup, ...]:
    """Divide layers, whose windows are given (0: none), into groups of up to `group_size` layers.

    Group 0 keeps all tokens and is filled up with the layers of the longest windows; each window has further groups.
    """
    by_window: dict[int, list[int]] = {}
    for layer, window in windows.items():
        by_window.setdefault(window, []).append(layer)
    group_0 = by_window.pop(0, [])
    for window in sorted(by_window, reverse=True):
        while len(group_0) < group_size and by_window[window]:
            group_0.append(by_window[window].pop())
    groups = [LayerGroup(0, tuple(sorted(group_0)))]
    for window, layers in by_window.items():
        groups += [
            LayerGroup(window, tuple(layers[begin : begin + group_size])) for begin in range(0, len(layers), group_size)
        ]
    return tuple(groups)


def live_blocks(table: Iterable[int]) -> list[int]:
    """Return the blocks of a block table without its `FREED` entries."""
    return [block for block in table if block != FREED]
