"""The parts that decoders are made of, as functions that write to a GraphBuilder."""

from aethermind.model.blocks.attention import attention
from aethermind.model.blocks.biased import gelu_mlp, is_gelu_approximate, layer_norm, linear
from aethermind.model.blocks.cached_attention import cached_attention
from aethermind.model.blocks.decoder import decoder
from aethermind.model.blocks.embedding import embedding, lm_head
from aethermind.model.blocks.mlp import swiglu_mlp
from aethermind.model.blocks.rotary import rope_table

__all__ = [
    "attention",
    "cached_attention",
    "decoder",
    "embedding",
    "gelu_mlp",
    "is_gelu_approximate",
    "layer_norm",
    "linear",
    "lm_head",
    "rope_table",
    "swiglu_mlp",
]
