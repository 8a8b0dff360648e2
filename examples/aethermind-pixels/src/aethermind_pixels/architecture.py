"""The decoder: the Qwen2 architecture, built from core blocks. It gets image embeddings as prompt embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, StepInputs, read_decoder_config
from aethermind.model.blocks import decoder

__all__ = ["PIXELS"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class PixelsModel:
    """A model of this architecture, defined by its configuration."""

    config: DecoderConfig

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the graph and return the logits, float32 [R, vocab_size], of the R rows that need logits."""
        return decoder(builder, inputs, self.config, max_model_len, has_qkv_bias=True, has_qk_norm=False)


class PixelsArchitecture:
    """The architecture that config.json names `PixelsForCausalLM`."""

    ignored_names = ("lm_head.weight", "pixels.*")

    def create(self, raw: Mapping[str, Any]) -> PixelsModel:
        return PixelsModel(read_decoder_config(raw, defaults=_DEFAULTS))


PIXELS = PixelsArchitecture()
