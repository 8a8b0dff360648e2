"""The interfaces that a model package implements: reading its configuration and writing its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from aethermind.cache.layers import LayerCache, Paged, Recurrent, Window
from aethermind.graph.builder import GraphBuilder
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.model.mtp import MTPModule

__all__ = [
    "AdaptsWeights",
    "Architecture",
    "CausalLM",
    "DeclaresCache",
    "HasMTP",
    "TextEncoder",
    "cache_layout",
    "hybrid_layout",
    "windowed_layout",
]


class CausalLM(Protocol):
    """A decoder model of one configuration."""

    @property
    def config(self) -> DecoderConfig:
        """Its configuration."""

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Any:
        """Write the graph and return the logits, float32 [R, vocab_size]; parameters carry the checkpoint's names."""


@runtime_checkable
class DeclaresCache(Protocol):
    """A `CausalLM` whose layers do not all keep keys and values of the configuration's shape, or not of all tokens."""

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """What each layer keeps, one entry for each.

        The blocks of a `Window` layer may be freed behind its window, so its attention takes the tables of its group:
        `model.blocks.attention` and `cached_attention` do, other operators take them from `StepInputs.tables_of`.
        A `Recurrent` layer keeps a state of each sequence, a `Hybrid` one that and keys and values: its operators take
        the tensors from `StepInputs.caches` and the rows of the step's sequences from `StepInputs.state_slots`.
        """
        ...


def cache_layout(model: CausalLM) -> tuple[LayerCache, ...]:
    """What each layer of a model keeps: what it declares, or keys and values of all tokens, its windows being masks."""
    if isinstance(model, DeclaresCache):
        return model.cache_layout()
    config = model.config
    return (Paged(config.num_key_value_heads, config.head_dim, config.head_dim),) * len(config.sliding_windows)


def hybrid_layout(config: DecoderConfig, state: Recurrent, has_attention: Sequence[bool]) -> tuple[LayerCache, ...]:
    """What the layers of a hybrid keep: keys and values of all tokens where there is attention, elsewhere a state."""
    paged = Paged(config.num_key_value_heads, config.head_dim, config.head_dim)
    return tuple(paged if attends else state for attends in has_attention)


def windowed_layout(config: DecoderConfig) -> tuple[LayerCache, ...]:
    """What the layers of a decoder keep that attend by `model.blocks`: the `cache_layout` of a model to declare."""
    shape = (config.num_key_value_heads, config.head_dim, config.head_dim)
    return tuple(Window(*shape, window) if window else Paged(*shape) for window in config.sliding_windows)


@runtime_checkable
class AdaptsWeights(Protocol):
    """A model whose checkpoints store tensors under other names or in other layouts than its graph."""

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map the stored tensors to the graph's parameters with `checkpoint.AdaptedTensors`."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """A model that computes vectors of texts and generates nothing; the alternative to a `CausalLM`."""

    config: DecoderConfig
    pooling: str
    """The default pooling of its vectors (last, mean or cls), which a checkpoint or a caller may override."""

    def encode(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Any:
        """Write the graph of one text, whose tokens are those of the step, and return its hidden states
        F[T, hidden_size]; only token ids and positions of `inputs` are used.
        """
        ...


class Architecture(Protocol):
    """One entry of `architectures` in config.json."""

    ignored_names: tuple[str, ...]
    """Patterns of checkpoint tensors that the graph rightly does not use, such as a tied output matrix."""

    def create(self, raw: Mapping[str, Any]) -> CausalLM | TextEncoder:
        """Make a model from config.json's contents; ConfigError names a bad field."""


@runtime_checkable
class HasMTP(Protocol):
    """An `Architecture` whose checkpoints may have a module for multi-token prediction (MTP)."""

    def create_mtp(self, raw: Mapping[str, Any]) -> MTPModule | None:
        """Make the module, which drafts tokens for the model, from config.json's contents; None if it names none."""
        ...
