"""What this package registers: one architecture."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl

_PROVIDER = "aethermind-bert"
_CASES = "aethermind_bert.conformance:CASES"

_ALIASES = (
    "bert",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertForTokenClassification",
)


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register(
        "BertModel", "aethermind_bert.architecture:BERT", provider=_PROVIDER, cases=_CASES, aliases=_ALIASES
    )
