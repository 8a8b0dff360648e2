"""What the layers of a model keep in the KV cache: a model declares one entry for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError

__all__ = ["LayerCache", "Paged", "Shared", "Window", "source_layer"]


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values of every token: `k_cache` [num_kv_heads, key_dim] and `v_cache` [num_kv_heads, value_dim]."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        for name in ("num_kv_heads", "key_dim", "value_dim"):
            if (value := getattr(self, name)) < 1:
                raise InvalidArgumentError(f"{name} of a layer's cache is {value} but must be an integer of 1 or more.")

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """The heads and elements that a token takes, by tensor."""
        return {"k_cache": (self.num_kv_heads, self.key_dim), "v_cache": (self.num_kv_heads, self.value_dim)}


@dataclass(frozen=True, slots=True)
class Window(Paged):
    """Keys and values of which a query sees those of the last `window` tokens, its own included."""

    window: int


@dataclass(frozen=True, slots=True)
class Shared:
    """Nothing of its own: the layer reads what an earlier layer wrote (YOCO, Sun et al. 2024, arXiv:2405.05254)."""

    layer: int

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """Nothing."""
        return {}


LayerCache = Paged | Window | Shared
"""What one layer keeps."""


def source_layer(layers: Sequence[LayerCache], layer: int) -> int:
    """Return the layer whose cache `layer` reads: its own, or the one that it shares.

    InvalidArgumentError for a layer that shares a later one, or one that shares, too.
    """
    entry = layers[layer]
    if not isinstance(entry, Shared):
        return layer
    if not 0 <= entry.layer < layer or isinstance(layers[entry.layer], Shared):
        raise InvalidArgumentError(
            f"Layer {layer} shares the cache of layer {entry.layer}: name an earlier layer that has a cache of its own."
        )
    return entry.layer
