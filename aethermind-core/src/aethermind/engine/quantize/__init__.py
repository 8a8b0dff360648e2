"""Quantisation of a model into files that other engines read: compressed-tensors folders and GGUF."""

from aethermind.engine.quantize.importance import activation_importance
from aethermind.engine.quantize.matrices import ModelMatrices, find_matrices

__all__ = ["ModelMatrices", "activation_importance", "find_matrices"]
