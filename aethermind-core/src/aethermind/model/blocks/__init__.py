"""The building blocks of models: functions that write parts of a model's graph, and their configurations.

Names of values end in the letters of their dims, such as `x_TD`: T tokens, D hidden_size. Each module lists them.
"""

from aethermind.model.blocks.attention import attention, cached_attention, rope_table, rope_tables
from aethermind.model.blocks.decoder import (
    Attention,
    DecoderVariant,
    FeedForward,
    VariantModel,
    decoder,
    variant_decoder,
)
from aethermind.model.blocks.latent_attention import LatentAttention, split_latent_projections
from aethermind.model.blocks.layers import (
    GeluMlps,
    embedding,
    geglu_mlp,
    gelu_mlp,
    is_gelu_approximate,
    layer_norm,
    linear,
    lm_head,
    scaled,
    swiglu_mlp,
)
from aethermind.model.blocks.mixture import mixture_mlps, moe_mlp
from aethermind.model.blocks.recurrent import (
    DeltaNetConfig,
    Mamba2Config,
    ShortConvConfig,
    delta_net_mixer,
    mamba2_mixer,
    short_conv_mixer,
)

__all__ = [
    "Attention",
    "DecoderVariant",
    "DeltaNetConfig",
    "FeedForward",
    "GeluMlps",
    "LatentAttention",
    "Mamba2Config",
    "ShortConvConfig",
    "VariantModel",
    "attention",
    "cached_attention",
    "decoder",
    "delta_net_mixer",
    "embedding",
    "geglu_mlp",
    "gelu_mlp",
    "is_gelu_approximate",
    "layer_norm",
    "linear",
    "lm_head",
    "mamba2_mixer",
    "mixture_mlps",
    "moe_mlp",
    "rope_table",
    "rope_tables",
    "scaled",
    "short_conv_mixer",
    "split_latent_projections",
    "swiglu_mlp",
    "variant_decoder",
]
