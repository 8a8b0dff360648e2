"""Modules for multi-token prediction (MTP): a decoder layer that drafts tokens for a model.

Source: DeepSeek-V3, 2024, arXiv:2412.19437, section 2.2. For position i the module reads the hidden state of token i,
from which the model's LM head computes logits, and the embedding of token i + 1. Both are normed, concatenated and
projected; a layer like the model's, with keys and values of its own, reads the result. The layer's output, normed, goes
through the model's LM head: these are logits of token i + 2. To draft more tokens, the module reads its own hidden
state instead of the model's. (vLLM: the method `mtp`; SGLang: `NEXTN`.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aethermind.cache.layers import LayerCache
from aethermind.graph.builder import GraphBuilder
from aethermind.model.architecture import AdaptsWeights, CausalLM, cache_layout
from aethermind.model.config import DecoderConfig, positive_int
from aethermind.model.step_inputs import StepInputs

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors

__all__ = ["MTPModule", "MTP_PROJECTION", "SHARED_WITH_MTP"]

MTP_PROJECTION = "mtp.eh_proj.weight"
"""The projection [D, 2 · D] of an embedding and a hidden state, D being the hidden size; every module has it."""

SHARED_WITH_MTP = ("model.embed_tokens.weight", "lm_head.weight")
"""The parameters that a module shares with its model."""


_PREFIXES = {
    **{name: name for name in ("mtp.enorm.", "mtp.hnorm.", "mtp.eh_proj.")},
    "mtp.layers.0.": "model.layers.0.",
    "mtp.norm.": "model.norm.",
}
_SHARED_PREFIXES = {"model.embed_tokens.": "model.embed_tokens.", "lm_head.": "lm_head."}


@dataclass(frozen=True, slots=True)
class MTPModule:
    """An MTP module as a model of one layer, which drafts for another model; implements `CausalLM`.

    Attributes:
        model: the one layer, a model whose graph reads `StepInputs.hidden_states`, as that of `blocks.variant_decoder`.
        prefixes: maps prefixes of the module's tensor names in a checkpoint to those in the graph: `mtp.enorm.` and
            `mtp.hnorm.` (the norms of embeddings and hidden states), `mtp.eh_proj.` (the projection),
            `model.layers.0.` and `model.norm.`. Names of GGUF files need no entry.
        shared_prefixes: the same for the parameters of `SHARED_WITH_MTP`, `model.embed_tokens.` and `lm_head.`.
    """

    model: CausalLM
    prefixes: Mapping[str, str]
    shared_prefixes: Mapping[str, str] = field(default_factory=lambda: _SHARED_PREFIXES)

    @classmethod
    def behind_layers(cls, create: Callable[[Mapping[str, Any]], CausalLM], raw: Mapping[str, Any]) -> MTPModule | None:
        """Make the module of a checkpoint of DeepSeek-V3's form; None if `num_nextn_predict_layers` is 0 in `raw`.

        `raw` are config.json's contents, and `create` makes the model of such. The checkpoint stores the module as one
        more layer after the model's layers, a mixture of experts. Its embeddings and LM head are the model's; copies of
        them in the checkpoint are not read.
        """
        if not raw.get("num_nextn_predict_layers", raw.get("num_mtp_layers")):
            return None
        num_layers = positive_int(raw, "num_hidden_layers")
        model = create({**raw, "num_hidden_layers": 1, "first_k_dense_replace": 0, "moe_layer_freq": 1})
        base = f"model.layers.{num_layers}"
        projection = {f"{base}.{name}.": f"mtp.{name}." for name in ("enorm", "hnorm", "eh_proj")}
        return cls(model, {f"{base}.": "model.layers.0.", **projection, f"{base}.shared_head.norm.": "model.norm."})

    @property
    def config(self) -> DecoderConfig:
        """The configuration of the one layer."""
        return self.model.config

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Any:
        """Write the graph and return the logits, float32 [R, vocab_size]; marks the `hidden_states`."""
        return self.model.build(builder, inputs, max_model_len)

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what the one layer caches."""
        return cache_layout(self.model)

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Select the tensors of the module and the shared ones, and give them the names of the graph."""
        from aethermind.checkpoint.remapped import AdaptedTensors, renamed_prefixes

        renamed = renamed_prefixes(stored.names, {**_PREFIXES, **self.prefixes, **self.shared_prefixes})
        selected = AdaptedTensors(stored, renamed, only_parts=True)
        return self.model.adapt(selected) if isinstance(self.model, AdaptsWeights) else selected
