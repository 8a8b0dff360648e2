"""What the layers of a model keep in the KV cache: a model declares one entry for each layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError

__all__ = [
    "AttentionCache",
    "Hybrid",
    "Latent",
    "LayerCache",
    "Paged",
    "Recurrent",
    "Shared",
    "Window",
    "attention_of",
    "has_latent",
    "recurrent_of",
    "source_layer",
]


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
    """Keys and values of every token, of which a query sees those of the last `window` tokens, its own included."""

    window: int


@dataclass(frozen=True, slots=True)
class Latent:
    """A latent vector and a rotated key of every token, which all heads share: `k_cache` [1, rank + rope_dim].

    There is no `v_cache`, since values are the first `rank` elements of the keys (multi-head latent attention;
    DeepSeek-V2, 2024, arXiv:2405.04434).
    """

    rank: int
    rope_dim: int

    def __post_init__(self) -> None:
        if self.rank < 1 or self.rope_dim < 0:
            raise InvalidArgumentError(
                f"A latent cache of rank {self.rank} and {self.rope_dim} rotated elements holds nothing; the rank must "
                "be 1 or more, and rope_dim 0 or more."
            )

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """The heads and elements that a token takes, by tensor."""
        return {"k_cache": (1, self.rank + self.rope_dim)}


@dataclass(frozen=True, slots=True)
class Shared:
    """No cache of its own: the layer reads an earlier layer's (YOCO, Sun et al. 2024, arXiv:2405.05254)."""

    layer: int

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """No rows: the layer keeps nothing of each token."""
        return {}


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A state of fixed size for each sequence, which every token advances (Mamba 2, gated delta rule, short
    convolutions); it takes no bytes a token.

    `tensors` are the names and shapes of the state of one sequence, such as `("conv_state", (K - 1, C))` and
    `("recurrent_state", (H, Dk, Dv))`. They are float32 whatever the model computes in, because rounding them would
    add an error with each token. InvalidArgumentError for a name that is no identifier, occurs twice or is one of an
    attention cache, and for a shape without elements.
    """

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.tensors]
        if not names or len(set(names)) < len(names) or any(not name.isidentifier() or _is_row(name) for name in names):
            raise InvalidArgumentError(
                f"The tensors of a recurrent layer are named {', '.join(names) or 'nothing'}: give each a name of its "
                "own that is an identifier and does not end in _cache or _scale, such as conv_state."
            )
        for name, shape in self.tensors:
            if not shape or min(shape) < 1:
                raise InvalidArgumentError(
                    f"The shape of {name} is {shape}, but each dimension must be an integer of 1 or more."
                )

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """No rows: the layer keeps nothing of each token."""
        return {}


AttentionCache = Paged | Window | Latent | Shared
"""The kinds of attention cache: what a layer keeps of each token."""


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The caches of a layer whose attention and recurrence compute side by side (Falcon-H1, Zuo et al. 2025)."""

    attention: AttentionCache
    recurrent: Recurrent

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """The rows of the attention."""
        return self.attention.rows


LayerCache = AttentionCache | Recurrent | Hybrid
"""What one layer keeps: an attention cache, a recurrent state, or both."""


def attention_of(entry: LayerCache) -> AttentionCache | None:
    """Return the attention cache of a layer; None for a layer without attention."""
    if isinstance(entry, Hybrid):
        return entry.attention
    return None if isinstance(entry, Recurrent) else entry


def has_latent(layers: Iterable[LayerCache]) -> bool:
    """Whether any layer caches latent vectors, which are neither quantised nor rotated to other positions."""
    return any(isinstance(attention_of(entry), Latent) for entry in layers)


def recurrent_of(entry: LayerCache) -> Recurrent | None:
    """Return the recurrent state of a layer; None for a layer without recurrence."""
    if isinstance(entry, Hybrid):
        return entry.recurrent
    return entry if isinstance(entry, Recurrent) else None


def _is_row(name: str) -> bool:
    """Whether a tensor of that name holds rows of tokens, in an attention cache."""
    return name.endswith(("_cache", "_scale"))


def source_layer(layers: Sequence[LayerCache], layer: int) -> int:
    """Return the layer whose keys and values `layer` reads: itself, or the one that it shares.

    InvalidArgumentError for a layer that shares a later one, or one that has none of its own.
    """
    entry = attention_of(layers[layer])
    if not isinstance(entry, Shared):
        return layer
    if not 0 <= entry.layer < layer or isinstance(attention_of(layers[entry.layer]), Shared | None):
        raise InvalidArgumentError(
            f"Layer {layer} shares the cache of layer {entry.layer}: name an earlier layer that has a cache of its own."
        )
    return entry.layer
