"""Modules for multi-token prediction (MTP; DeepSeek-V3, 2024, arXiv:2412.19437, section 2.2): one decoder layer that
drafts the token after the next.

For position i the module reads the hidden state of token i, which is what the model's output projection read, and the
embedding of token i + 1. Both are normed, concatenated and projected to a layer like the model's, with keys and values
of its own. The layer's output, normed, goes through the model's output projection: logits of token i + 2. To draft more
tokens, the module reads its own hidden state in place of the model's. (vLLM: the method `mtp`; SGLang: `NEXTN`.)
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
"""The projection [D, 2 · D] of an embedding and a hidden state, which every module has."""

SHARED_WITH_MTP = ("model.embed_tokens.weight", "lm_head.weight")
"""The parameters that a module has in common with its model."""


_OWN = {
    **{name: name for name in ("mtp.enorm.", "mtp.hnorm.", "mtp.eh_proj.")},
    "mtp.layers.0.": "model.layers.0.",
    "mtp.norm.": "model.norm.",
}
_SHARED = {"model.embed_tokens.": "model.embed_tokens.", "lm_head.": "lm_head."}


@dataclass(frozen=True, slots=True)
class MTPModule:
    """An MTP module as a model of its own, which drafts for another; implements `CausalLM`.

    Attributes:
        model: a model of one layer, whose graph reads `StepInputs.hidden_states`: `blocks.variant_decoder` does.
        prefixes: beginnings of the module's names in a checkpoint, and those of `model`: `mtp.enorm.` and `mtp.hnorm.`
            of the norms of embeddings and hidden states, `mtp.eh_proj.` of the projection, `model.layers.0.` and
            `model.norm.`. In GGUF files these are `mtp.layers.0.` and `mtp.norm.`, which need no entry.
        shared_prefixes: the same for `SHARED_WITH_MTP`, `model.embed_tokens.` and `lm_head.`.
    """

    model: CausalLM
    prefixes: Mapping[str, str]
    shared_prefixes: Mapping[str, str] = field(default_factory=lambda: _SHARED)

    @classmethod
    def behind_layers(cls, create: Callable[[Mapping[str, Any]], CausalLM], raw: Mapping[str, Any]) -> MTPModule | None:
        """Make the module of DeepSeek-V3's kind from config.json's contents; None if `num_nextn_predict_layers` is 0.

        It is stored behind the layers of its model, with the names of a further one, which is a mixture of experts.
        `create` makes a model. Embeddings and head are the model's; copies of them in the checkpoint are not read.
        """
        if not raw.get("num_nextn_predict_layers", raw.get("num_mtp_layers")):
            return None
        num_layers = positive_int(raw, "num_hidden_layers")
        model = create({**raw, "num_hidden_layers": 1, "first_k_dense_replace": 0, "moe_layer_freq": 1})
        base = f"model.layers.{num_layers}"
        own = {f"{base}.{name}.": f"mtp.{name}." for name in ("enorm", "hnorm", "eh_proj")}
        return cls(model, {f"{base}.": "model.layers.0.", **own, f"{base}.shared_head.norm.": "model.norm."})

    @property
    def config(self) -> DecoderConfig:
        """The configuration of the one layer."""
        return self.model.config

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Any:
        """Write the graph and return the logits, float32 [R, vocab_size]; the hidden states are marked."""
        return self.model.build(builder, inputs, max_model_len)

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """What the layer keeps."""
        return cache_layout(self.model)

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Leave out all tensors but the module's and the shared ones, and give them the names of the graph."""
        from aethermind.checkpoint.remapped import AdaptedTensors, renamed_prefixes

        renamed = renamed_prefixes(stored.names, {**_OWN, **self.prefixes, **self.shared_prefixes})
        own = AdaptedTensors(stored, renamed, only_parts=True)
        return self.model.adapt(own) if isinstance(self.model, AdaptsWeights) else own
