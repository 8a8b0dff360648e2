"""Sampling: parameters of requests, reproducible random numbers, and the sampler's inputs as row tensors."""

from aethermind.sampling.params import SamplingParams, StructuredOutputs

__all__ = ["SamplingParams", "StructuredOutputs"]
