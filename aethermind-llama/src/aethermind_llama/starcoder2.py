"""StarCoder2 as a graph: Llama's attention with GPT-2's norms and feed-forward network.

Source: Lozhkov et al. 2024, arXiv:2402.19173.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, GeluMlps, VariantModel
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["STARCODER2"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
_FIELDS: FieldTable = {
    **used("is the epsilon of norms", "norm_epsilon"),
    **used("says whether projections have biases", "use_bias"),
    **ignored("is for training", "embedding_dropout", "residual_dropout"),
}


_NAMES = {"rms_norm_eps": "norm_epsilon"}


class Starcoder2Architecture:
    """`Starcoder2ForCausalLM`. A sliding window applies to all layers."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        fields = {"hidden_act": "gelu_pytorch_tanh", **raw}
        if raw.get("sliding_window") is not None and raw.get("layer_types") is None:
            fields |= {"use_sliding_window": True, "max_window_layers": 0}
        config = read_decoder_config(fields, defaults=_DEFAULTS, activations=("gelu_pytorch_tanh",), names=_NAMES)
        has_bias = raw.get("use_bias") is not False
        variant = DecoderVariant(
            has_layer_norm=True,
            has_norm_bias=True,
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            mlp=GeluMlps(
                ("c_fc", "c_proj"), config.hidden_size, config.intermediate_size, is_approximate=True, has_bias=has_bias
            ),
        )
        return VariantModel(config, variant)


STARCODER2 = Starcoder2Architecture()
