"""The toolkit of model packages: configuration, rotary frequencies, building blocks, and registries."""

from aethermind.cache.layers import Hybrid, Latent, LayerCache, Paged, Recurrent, Shared, Window
from aethermind.model.architecture import (
    AdaptsWeights,
    Architecture,
    CausalLM,
    DeclaresCache,
    HasMTP,
    TextEncoder,
    hybrid_layout,
    windowed_layout,
)
from aethermind.model.config import (
    DecoderConfig,
    periodic_layer_types,
    positive_int,
    positive_number,
    read_attention_layers,
    read_decoder_config,
    read_numbers,
)
from aethermind.model.input_processor import EmbeddingSpan, InputProcessor, ProcessedPrompt
from aethermind.model.mixture import MixtureConfig, RouterConfig, read_deepseek_mixture, read_mixture_config
from aethermind.model.mtp import MTPModule
from aethermind.model.registry import ArchitectureRegistry, ModelRegistry
from aethermind.model.rope import read_rope
from aethermind.model.step_inputs import StepInputs
from aethermind.plugins.compatibility import deprecated_names
from aethermind.plugins.registry import Registry

__getattr__ = deprecated_names(__name__, {"InputProcessorRegistry": ("aethermind.plugins.registry.Registry", Registry)})

__all__ = [
    "AdaptsWeights",
    "Architecture",
    "ArchitectureRegistry",
    "CausalLM",
    "DeclaresCache",
    "DecoderConfig",
    "EmbeddingSpan",
    "HasMTP",
    "Hybrid",
    "InputProcessor",
    "Latent",
    "LayerCache",
    "MTPModule",
    "MixtureConfig",
    "ModelRegistry",
    "Paged",
    "ProcessedPrompt",
    "Recurrent",
    "RouterConfig",
    "Shared",
    "StepInputs",
    "TextEncoder",
    "Window",
    "hybrid_layout",
    "periodic_layer_types",
    "positive_int",
    "positive_number",
    "read_attention_layers",
    "read_decoder_config",
    "read_deepseek_mixture",
    "read_mixture_config",
    "read_numbers",
    "read_rope",
    "windowed_layout",
]
