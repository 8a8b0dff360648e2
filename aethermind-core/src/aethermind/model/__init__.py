"""The toolkit of model packages: configuration, rotary frequencies, building blocks, and registries."""

from aethermind.model.architecture import AdaptsWeights, Architecture, CausalLM, TextEncoder
from aethermind.model.config import DecoderConfig, read_decoder_config
from aethermind.model.input_processor import EmbeddingSpan, InputProcessor, ProcessedPrompt
from aethermind.model.registry import ArchitectureRegistry, ModelRegistry
from aethermind.model.step_inputs import StepInputs
from aethermind.plugins.compatibility import deprecated_names
from aethermind.plugins.registry import Registry

__getattr__ = deprecated_names(__name__, {"InputProcessorRegistry": ("aethermind.plugins.registry.Registry", Registry)})

__all__ = [
    "AdaptsWeights",
    "Architecture",
    "ArchitectureRegistry",
    "CausalLM",
    "DecoderConfig",
    "EmbeddingSpan",
    "InputProcessor",
    "ModelRegistry",
    "ProcessedPrompt",
    "StepInputs",
    "TextEncoder",
    "read_decoder_config",
]
