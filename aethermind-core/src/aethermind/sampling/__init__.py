"""How the next token is chosen: parameters, reproducible random numbers, and both as row tensors for the sampler's
operators.
"""

from aethermind.sampling.params import SamplingParams
from aethermind.sampling.structured import StructuredOutputs

__all__ = ["SamplingParams", "StructuredOutputs"]
