"""The cases of the Qwen packages as checkpoints with the demo model's tokenizer, and transformers' answers for them."""

from __future__ import annotations

import json
import shutil
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import aethermind_qwen2
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.case import Outputs
from aethermind.testing.families.parity import reference_of
from aethermind.testing.families.transformers_reference import outputs_of, pretrained
from aethermind_qwen2.conformance import CASES

__all__ = ["CASES", "DEMO", "VOCAB_SIZE", "qwen2", "reference_model", "reference_outputs", "write_checkpoint"]

DEMO = Path(aethermind_qwen2.__file__).parent / "demo"
VOCAB_SIZE = SMALL["vocab_size"]


def qwen2(name: str, **changes: Any) -> ModelCase:
    """A small Qwen2."""
    return ModelCase(name, "Qwen2ForCausalLM", {**SMALL, **changes})


def write_checkpoint(case: ModelCase, directory: Path) -> Path:
    """Write a model with random weights and the demo model's tokenizer; the same for every call."""
    reference_of(case).write(case, directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, directory / name)
    return directory


@cache
def reference_model(
    directory: Path,
    rounded_to: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.float64,
    context: int | None = None,
) -> Any:
    """Transformers' model of a checkpoint; see `pretrained`."""
    (architecture,) = json.loads((directory / "config.json").read_text())["architectures"]
    return pretrained(architecture, directory, rounded_to, dtype, context)


def reference_outputs(directory: Path) -> Outputs:
    """Transformers' logits for a whole text, float64."""
    return partial(outputs_of, reference_model(directory))
