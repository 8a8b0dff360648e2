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
    """A `CausalLM` that declares what its layers cache, because this differs between layers or from the default.

    The default is keys and values of all tokens, of the configuration's shape, in every layer.
    """

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what each layer caches, one entry for each layer.

        The blocks of a `Window` layer are freed when no query can see them any more, so its attention reads the block
        tables of its group: `model.blocks.attention` and `cached_attention` do this, other operators take the tables
        from `StepInputs.tables_of`. A `Recurrent` layer has a state of each sequence, a `Hybrid` layer a state, and
        keys and values: their operators take the tensors from `StepInputs.caches` and the rows of the step's sequences
        from `StepInputs.state_slots`.
        """
        ...


def cache_layout(model: CausalLM) -> tuple[LayerCache, ...]:
    """Return what each layer of a model caches: what the model declares, or keys and values of all tokens.

    In the second case sliding windows are only masks of attention scores.
    """
    if isinstance(model, DeclaresCache):
        return model.cache_layout()
    config = model.config
    return (Paged(config.num_key_value_heads, config.head_dim, config.head_dim),) * len(config.sliding_windows)


def hybrid_layout(config: DecoderConfig, state: Recurrent, has_attention: Sequence[bool]) -> tuple[LayerCache, ...]:
    """Return what a hybrid model caches: keys and values of all tokens in layers with attention, a state in others."""
    paged = Paged(config.num_key_value_heads, config.head_dim, config.head_dim)
    return tuple(paged if is_attention else state for is_attention in has_attention)


def windowed_layout(config: DecoderConfig) -> tuple[LayerCache, ...]:
    """Return the `cache_layout` of a decoder with sliding windows: of each layer the tokens in its window, or all."""
    shape = (config.num_key_value_heads, config.head_dim, config.head_dim)
    return tuple(Window(*shape, window) if window else Paged(*shape) for window in config.sliding_windows)


@runtime_checkable
class AdaptsWeights(Protocol):
    """A model whose checkpoints have other tensor names or layouts than its graph."""

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map the stored tensors to the graph's parameters with `checkpoint.AdaptedTensors`."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """A model that computes embedding vectors of texts and generates no tokens; the alternative to a `CausalLM`."""

    config: DecoderConfig
    pooling: str
    """The default pooling of vectors (last, mean or cls), which a checkpoint or a caller may override."""

    def encode(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Any:
        """Write the graph of one text and return its hidden states, F[T, hidden_size].

        All T tokens of the step are those of the text. Only token ids and positions of `inputs` are used.
        """
        ...


class Architecture(Protocol):
    """The implementation of one name in `architectures` of config.json: makes models from configurations."""

    ignored_names: tuple[str, ...]
    """Patterns of names of checkpoint tensors that the graph does not need, such as a copy of a tied LM head."""

    def create(self, raw: Mapping[str, Any]) -> CausalLM | TextEncoder:
        """Make a model from config.json's contents; ConfigError names a bad field."""


@runtime_checkable
class HasMTP(Protocol):
    """An `Architecture` whose checkpoints may have a module for multi-token prediction (MTP)."""

    def create_mtp(self, raw: Mapping[str, Any]) -> MTPModule | None:
        """Make the module, which drafts tokens for the model, from config.json's contents; None if there is none."""
        ...
