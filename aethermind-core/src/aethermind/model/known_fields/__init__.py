"""Every field of published models' JSON files with its effect here: tables for the loader and the documentation."""

from aethermind.model.known_fields.check import KnowsFields, check_fields, config_fields
from aethermind.model.known_fields.tables import (
    CONFIG_FIELDS,
    GENERATION_FIELDS,
    QUANTIZATION_FIELDS,
    TOKENIZER_FIELDS,
    Field,
    FieldTable,
    Handling,
    ignored,
    not_applied,
    refused,
    used,
)
from aethermind.plugins.compatibility import deprecated_names

__getattr__ = deprecated_names(__name__, {"Fate": ("Handling", Handling)})

__all__ = [
    "CONFIG_FIELDS",
    "Field",
    "FieldTable",
    "GENERATION_FIELDS",
    "Handling",
    "KnowsFields",
    "QUANTIZATION_FIELDS",
    "TOKENIZER_FIELDS",
    "check_fields",
    "config_fields",
    "ignored",
    "not_applied",
    "refused",
    "used",
]
