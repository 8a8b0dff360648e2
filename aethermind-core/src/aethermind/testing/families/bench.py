"""The argument of checks: a small model on a device, with its reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aethermind.errors import InvalidArgumentError
from aethermind.llm import LLM
from aethermind.runtime import Runtime
from aethermind.testing.families.case import ModelCase, Outputs, Reference
from aethermind.testing.families.parity import TOLERANCE, random_prompts

__all__ = ["Bench", "Checkpoints", "reference_of"]


class Checkpoints:
    """Checkpoints of cases, and the outputs of their references, each made once."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        """`make_folder(name)` makes a new folder, as pytest's `tmp_path_factory.mktemp` does."""
        self._make_folder = make_folder
        self._made: dict[int, tuple[ModelCase, Path]] = {}
        self._outputs: dict[int, Outputs] = {}
        self._tolerances: dict[int, float] = {}

    def directory(self, case: ModelCase) -> Path:
        """Return the checkpoint of a case, with a tokenizer whose tokens are numbers."""
        if id(case) not in self._made:
            directory = self._make_folder(case.name)
            reference_of(case).write(case, directory)
            _write_tokenizer(directory)
            self._made[id(case)] = case, directory
        return self._made[id(case)][1]

    def outputs(self, case: ModelCase) -> Outputs:
        """Return the outputs of the reference for the checkpoint of a case."""
        if id(case) not in self._outputs:
            self._outputs[id(case)] = reference_of(case).outputs(case, self.directory(case))
        return self._outputs[id(case)]

    def tolerance(self, case: ModelCase) -> float:
        """Return the allowed error of logits in float32, as a fraction of a row's largest.

        It is twice the reference's own error on a random text where that is more and the case allows it.
        """
        in_float32 = getattr(reference_of(case), "float32_outputs", None) if case.may_err_as_reference else None
        if in_float32 is None:
            return TOLERANCE
        if id(case) not in self._tolerances:
            (text,) = random_prompts(40, vocab_size=case.vocab_size)
            exact = self.outputs(case)(text)
            error = abs(in_float32(case, self.directory(case))(text) - exact).max(axis=1) / abs(exact).max(axis=1)
            self._tolerances[id(case)] = max(TOLERANCE, 2 * float(error.max()))
        return self._tolerances[id(case)]


@dataclass(frozen=True)
class Bench:
    """One case on one device."""

    case: ModelCase
    runtime: Runtime
    device: str
    checkpoints: Checkpoints

    @cached_property
    def directory(self) -> Path:
        """The directory of the checkpoint."""
        return self.checkpoints.directory(self.case)

    @cached_property
    def outputs(self) -> Outputs:
        """The outputs of the reference."""
        return self.checkpoints.outputs(self.case)

    @property
    def tolerance(self) -> float:
        """The allowed error of logits in float32, as a fraction of a row's largest."""
        return self.checkpoints.tolerance(self.case)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.case.vocab_size

    def open(self, **options: Any) -> LLM:
        """Open the model on the device, in float32 by default and on one thread, because it is small."""
        defaults = {"dtype": "float32", "max_model_len": self.case.max_model_len, "fallback": "allow", "num_threads": 1}
        return LLM(self.directory, device=self.device, runtime=self.runtime, **{**defaults, **options})


def reference_of(case: ModelCase) -> Reference:
    """Return the reference of a case, by default transformers; InvalidArgumentError where that lacks the family."""
    if case.reference is not None:
        return case.reference
    try:
        import transformers

        from aethermind.testing.families.transformers_reference import TransformersReference
    except ImportError as error:
        raise InvalidArgumentError(
            f"{case.architecture} is compared with transformers, which cannot be imported here ({error}): "
            "pip install transformers torch, or give its cases a reference of their own."
        ) from None
    if not hasattr(transformers, case.architecture):
        raise InvalidArgumentError(
            f"Transformers {transformers.__version__} has no {case.architecture}. Give the family's cases a reference "
            "of their own (`aethermind.testing.families.NumpyReference`), or install a newer transformers."
        )
    return TransformersReference()


def _write_tokenizer(directory: Path) -> None:
    """Write a tokenizer whose words are numbers, as many as there may be ids; none ends an answer."""
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {str(number): number for number in range(256)}, "unk_token": "0"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text("{}")
