"""Phi-1, Phi-1.5 and Phi-2 as graphs: parallel blocks with biases in all projections, and partial rotation.

Phi-1 (Gunasekar et al. 2023, arXiv:2306.11644), Phi-1.5 (Li et al. 2023, arXiv:2309.05463).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice
from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, GeluMlps, VariantModel, is_gelu_approximate
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = ["PHI2"]

_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "vocab_size": 51200,
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "hidden_act": "gelu_new",
}
_GELUS = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu")
_FIELDS: FieldTable = {
    **used("is the part of each head that is rotated", "partial_rotary_factor"),
    **used("is the epsilon of norms", "layer_norm_eps"),
    **ignored("layer_norm_eps is the epsilon of norms", "rms_norm_eps"),
    **ignored("matters while a model is trained", "embd_pdrop", "resid_pdrop"),
    **refused("norms of queries and keys are not computed; take another model", qk_layernorm=False),
}


@dataclass(frozen=True, slots=True)
class Phi2(VariantModel):
    """A Phi-1, Phi-1.5 or Phi-2 model."""

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Rename the modules that have other names than Llama's."""
        bases = [f"model.layers.{layer}.self_attn" for layer in range(self.config.num_hidden_layers)]
        modules = {f"{base}.o_proj": f"{base}.dense" for base in bases}
        modules["model.norm"] = "model.final_layernorm"
        kinds = ("weight", "bias")
        return AdaptedTensors(
            stored, {f"{name}.{kind}": TensorSlice(f"{old}.{kind}") for name, old in modules.items() for kind in kinds}
        )


class Phi2Architecture:
    """`PhiForCausalLM`: Phi-1, Phi-1.5 and Phi-2."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> Phi2:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        fields = {**_DEFAULTS, **{name: value for name, value in raw.items() if value is not None}}
        names = {"rms_norm_eps": "layer_norm_eps"}
        config = read_decoder_config(fields, defaults={}, has_partial_rotary=True, activations=_GELUS, names=names)
        is_approximate = is_gelu_approximate("hidden_act", fields["hidden_act"])
        variant = DecoderVariant(
            has_layer_norm=True,
            has_norm_bias=True,
            is_parallel=True,
            has_qkv_bias=True,
            has_output_bias=True,
            has_logits_bias=True,
            mlp=GeluMlps(("fc1", "fc2"), config.hidden_size, config.intermediate_size, is_approximate),
        )
        return Phi2(config, variant)


PHI2 = Phi2Architecture()
