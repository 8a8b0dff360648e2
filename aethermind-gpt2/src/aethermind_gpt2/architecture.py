"""GPT-2 (Radford et al. 2019) as a graph: learned positions, layer norms, and biases in all projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice
from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, StepInputs, positive_int, read_decoder_config
from aethermind.model.blocks import (
    cached_attention,
    embedding,
    gelu_mlp,
    is_gelu_approximate,
    layer_norm,
    linear,
    lm_head,
)
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = ["GPT2"]

_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
}
"""Fields of `DecoderConfig` that have another name in GPT-2's config.json."""
_DECODER_FIELDS = ("vocab_size", "tie_word_embeddings", "eos_token_id", "dtype", "torch_dtype")
"""Fields that have the usual name there."""
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
_KNOWN_FIELDS: FieldTable = {
    **used("are sizes of the graph", "n_embd", "n_layer", "n_head", "n_inner"),
    **used("is the longest context", "n_positions"),
    **used("is the epsilon of norms", "layer_norm_epsilon"),
    **used("is the activation; activations other than GELU are refused", "activation_function"),
    **used("says whether scores of attention are scaled", "scale_attn_weights"),
    **ignored("is the older name of n_positions", "n_ctx"),
    **ignored("matters in training only", "attn_pdrop", "embd_pdrop", "resid_pdrop"),
    **ignored("scores of attention are computed in float32 anyway", "reorder_and_upcast_attn"),
    **ignored("configures classification heads", "summary_activation", "summary_first_dropout", "summary_type"),
    **ignored("configures classification heads", "summary_proj_to_labels", "summary_use_proj"),
    **ignored("GPT-2 has no rotary embedding, and no gate", "predict_special_tokens", "rotary_dim"),
    **refused(
        "scaling attention by the layer is not computed; take another model", scale_attn_by_inverse_layer_idx=False
    ),
}
_UNSUPPORTED_FLAGS = ("scale_attn_by_inverse_layer_idx", "add_cross_attention")


@dataclass(frozen=True, slots=True)
class Gpt2:
    """A GPT-2 model."""

    config: DecoderConfig
    is_gelu_approximate: bool
    scale: float
    """The factor of attention scores."""
    has_transposed_matrices: bool = True
    """Whether weights are stored as [in, out], as in all checkpoints but GGUF files."""

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        config = self.config
        wpe_PD = builder.parameter("wpe.weight", (config.max_position_embeddings, config.hidden_size))
        position_TD = builder.op("position_embedding", inputs.positions, wpe_PD)
        x_TD = builder.op("add", embedding(builder, inputs, config, "wte.weight"), position_TD)
        for layer in range(config.num_hidden_layers):
            with builder.scope(f"h.{layer}"):
                x_TD = builder.op("add", x_TD, self._attention(builder, x_TD, inputs, layer))
                x_TD = builder.op("add", x_TD, self._mlp(builder, x_TD, layer))
        x_RD = builder.op("gather_rows", x_TD, inputs.logits_rows)
        head = "wte.weight" if config.tie_word_embeddings else "lm_head.weight"
        return lm_head(builder, self._norm(builder, x_RD, "ln_f"), config, head)

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map the stored tensors to the graph's names, and slice q, k and v out of one matrix.

        OpenAI's own checkpoints have no prefix `transformer.`. A tied embedding may be stored as the LM head only.
        """
        prefix = "transformer." if "transformer.wpe.weight" in stored.names else ""
        size = self.config.hidden_size
        slices = {name: TensorSlice(prefix + name) for name in ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")}
        if self.config.tie_word_embeddings and prefix + "wte.weight" not in stored.names:
            slices["wte.weight"] = TensorSlice("lm_head.weight")
        for base in (f"h.{layer}." for layer in range(self.config.num_hidden_layers)):
            for kind, is_transposed in (("weight", self.has_transposed_matrices), ("bias", False)):
                for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                    slices[f"{base}{name}.{kind}"] = TensorSlice(f"{prefix}{base}{name}.{kind}", is_transposed)
                qkv = f"{prefix}{base}attn.c_attn.{kind}"
                for name, begin, end in (("q", 0, size), ("k", size, 2 * size), ("v", 2 * size, None)):
                    slices[f"{base}attn.{name}.{kind}"] = TensorSlice(qkv, is_transposed, begin, end)
                for name in ("ln_1", "ln_2"):
                    slices[f"{base}{name}.{kind}"] = TensorSlice(f"{prefix}{base}{name}.{kind}")
        return AdaptedTensors(stored, slices)

    def _attention(self, builder: GraphBuilder, x_TD: Value, inputs: StepInputs, layer: int) -> Value:
        base, heads, size = f"h.{layer}", self.config.num_attention_heads, self.config.hidden_size
        normed_TD = self._norm(builder, x_TD, f"{base}.ln_1")
        q_THC, k_THC, v_THC = (
            builder.op("split_heads", linear(builder, normed_TD, f"{base}.attn.{name}", size, size), num_heads=heads)
            for name in ("q", "k", "v")
        )
        attended_THC = cached_attention(builder, q_THC, k_THC, v_THC, inputs, layer, scale=self.scale)
        return linear(builder, builder.op("merge_heads", attended_THC), f"{base}.attn.c_proj", size, size)

    def _mlp(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        base, config = f"h.{layer}", self.config
        normed_TD = self._norm(builder, x_TD, f"{base}.ln_2")
        names, widths = (f"{base}.mlp.c_fc", f"{base}.mlp.c_proj"), (config.hidden_size, config.intermediate_size)
        return gelu_mlp(builder, normed_TD, names, *widths, is_approximate=self.is_gelu_approximate)

    def _norm(self, builder: GraphBuilder, x_TD: Value, name: str) -> Value:
        return layer_norm(builder, x_TD, name, self.config.hidden_size, self.config.rms_norm_eps)


class Gpt2Architecture:
    """`GPT2LMHeadModel`."""

    ignored_names = ("lm_head.weight", "*.attn.bias", "*.attn.masked_bias")
    known_fields = _KNOWN_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Gpt2:
        fields = {**_DEFAULTS, **{name: value for name, value in raw.items() if value is not None}}
        for name in _UNSUPPORTED_FLAGS:
            if fields.get(name, False):
                raise ConfigError(f"{name} is true in config.json; this package computes GPT-2 without it.")
        is_approximate = is_gelu_approximate("activation_function", fields["activation_function"])
        decoder_fields = {name: fields[name] for name in (*_NAMES.values(), *_DECODER_FIELDS) if name in fields}
        decoder_fields.setdefault("n_inner", 4 * positive_int(fields, "n_embd"))
        config = read_decoder_config(decoder_fields, defaults={}, has_rotary=False, names=_NAMES)
        scale = config.head_dim**-0.5 if fields.get("scale_attn_weights", True) else 1.0
        return Gpt2(config, is_approximate, scale, bool(fields.get("has_transposed_matrices", True)))


GPT2 = Gpt2Architecture()
