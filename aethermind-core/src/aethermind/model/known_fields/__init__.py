"""Every field that published checkpoints carry, with what it does here: data, which the loader and the docs read."""

from aethermind.model.known_fields.check import KnowsFields, check_fields, config_fields
from aethermind.model.known_fields.config import CONFIG_FIELDS
from aethermind.model.known_fields.field import Fate, Field, FieldTable, ignored, not_applied, refused, used
from aethermind.model.known_fields.generation import GENERATION_FIELDS
from aethermind.model.known_fields.quantization import QUANTIZATION_FIELDS
from aethermind.model.known_fields.tokenizer import TOKENIZER_FIELDS

__all__ = [
    "CONFIG_FIELDS",
    "Fate",
    "Field",
    "FieldTable",
    "GENERATION_FIELDS",
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
