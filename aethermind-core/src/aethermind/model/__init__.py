"""What a model package builds on: configuration, rotary frequencies, blocks, and the registry of architectures."""

from aethermind.model.architecture import AdaptsWeights, Architecture, CausalLM, TextEncoder
from aethermind.model.config import DecoderConfig, read_decoder_config
from aethermind.model.input_processor import EmbeddingSpan, InputProcessor, ProcessedPrompt
from aethermind.model.registry import ArchitectureRegistry, InputProcessorRegistry, ModelRegistry
from aethermind.model.step_inputs import StepInputs

__all__ = [
    "AdaptsWeights",
    "Architecture",
    "ArchitectureRegistry",
    "CausalLM",
    "DecoderConfig",
    "EmbeddingSpan",
    "InputProcessor",
    "InputProcessorRegistry",
    "ModelRegistry",
    "ProcessedPrompt",
    "StepInputs",
    "TextEncoder",
    "read_decoder_config",
]
