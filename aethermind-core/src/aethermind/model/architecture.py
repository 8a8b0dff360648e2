"""What a model package provides: how to read its configuration and how to write its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from aethermind.graph.builder import GraphBuilder
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors

__all__ = ["AdaptsWeights", "Architecture", "CausalLM", "TextEncoder"]


class CausalLM(Protocol):
    """A decoder over one configuration."""

    config: DecoderConfig

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Any:
        """Write the graph and return the logits, float32 [R, vocab_size]; parameters carry the checkpoint's names."""


@runtime_checkable
class AdaptsWeights(Protocol):
    """What a model has besides when its checkpoints store tensors otherwise than its graph names them."""

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """The same tensors as the graph's parameters, by `checkpoint.AdaptedTensors`."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """A model that computes vectors of texts and generates nothing, in place of a `CausalLM`."""

    config: DecoderConfig
    pooling: str
    """How its vectors are pooled unless the checkpoint or the caller says otherwise: last, mean or cls."""

    def encode(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Any:
        """Write the graph of one text, whose tokens are those of the step, and return its hidden states
        F[T, hidden_size]; of `inputs`, token ids and positions mean something.
        """
        ...


class Architecture(Protocol):
    """One entry of `architectures` in config.json."""

    ignored_names: tuple[str, ...]
    """Patterns of checkpoint tensors that the graph does not use and that are no mistake (a tied head stored twice)."""

    def create(self, raw: Mapping[str, Any]) -> CausalLM | TextEncoder:
        """Read config.json's contents; ConfigError names a bad field."""
