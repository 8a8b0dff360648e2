"""The kit for model packages: small models of a family, each against a reference that somebody else wrote.

A package declares nothing, or variations of a small configuration, and registers them with its architecture:

    CASES = variations("LlamaForCausalLM", {"tied": {"tie_word_embeddings": True}, "wide": {"head_dim": 64}})

    registry.register("LlamaForCausalLM", "…:LLAMA", provider=…, cases="aethermind_llama.conformance:CASES")

`aethermind conform llama` then runs them; in a package's own tests, `checks_of` a case are functions of a `Bench`.
"""

from aethermind.testing.families.bench import Bench, Checkpoints
from aethermind.testing.families.case import SMALL, ModelCase, Reference, variations
from aethermind.testing.families.checks import checks_of
from aethermind.testing.families.find import cases_of
from aethermind.testing.families.numpy_reference import NumpyReference

__all__ = [
    "Bench",
    "Checkpoints",
    "ModelCase",
    "NumpyReference",
    "Reference",
    "SMALL",
    "cases_of",
    "checks_of",
    "variations",
]
