"""The conformance kit for model packages: small models of a family, each compared with an independent reference.

A package may declare variations of a small configuration, which it registers with its architecture:

    CASES = variations("LlamaForCausalLM", {"tied": {"tie_word_embeddings": True}, "wide": {"head_dim": 64}})

    registry.register("LlamaForCausalLM", "…:LLAMA", provider=…, cases="aethermind_llama.conformance:CASES")

`aethermind conform llama` then runs them; in a package's own tests, `checks_of` a case are functions of a `Bench`.
"""

from aethermind.testing.families.case import SMALL, ModelCase, NumpyReference, Reference, cases_of, variations
from aethermind.testing.families.checks import checks_of
from aethermind.testing.families.parity import Bench, Checkpoints

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
