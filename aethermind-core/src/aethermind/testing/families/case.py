"""A small model of a family, and the reference it is compared with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aethermind.runtime import Runtime

__all__ = [
    "ModelCase",
    "NumpyReference",
    "Outputs",
    "Reference",
    "SMALL",
    "architectures_of",
    "cases_of",
    "standard_cases",
    "variations",
]

SMALL: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
"""A small decoder of Llama's shape, with sizes that are not multiples of vector registers."""

_STANDARD_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "small": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "one_kv_head": {"num_key_value_heads": 1, "head_dim": 64},
}

Outputs = Callable[[Sequence[int]], Any]
"""Computes, from the token ids of a text, logits [T, vocab_size], or hidden states [T, hidden_size], in float64."""


class Reference(Protocol):
    """An independent implementation of a family."""

    def write(self, case: ModelCase, directory: Path) -> None:
        """Write config.json and model.safetensors with random weights, which are deterministic."""
        ...

    def outputs(self, case: ModelCase, directory: Path) -> Outputs:
        """Return the function that the checkpoint in a directory computes."""
        ...


@dataclass(frozen=True, eq=False)
class ModelCase:
    """One small model to test.

    Attributes:
        name: the variation, as the report shows it.
        architecture: the name in `architectures` of config.json.
        config: the rest of config.json, of a model small enough to be computed often.
        reference: the implementation that it is compared with; None for the class of transformers of that name.
        max_model_len: the context length; None for the model's.
        rewrite_config: converts config.json from the form that transformers writes to another one.
        max_shard_size: the size limit of files that transformers writes.
        allows_twice_reference_error: whether logits may have twice the error that the reference has in float32, for
            families whose arithmetic amplifies rounding errors.
        has_float32_parts: whether the class of transformers computes parts in float32 whatever its dtype is, by
            `tensor.to(torch.float32)`; the reference then computes them in float64.
    """

    name: str
    architecture: str
    config: Mapping[str, Any] = field(default_factory=lambda: SMALL)
    reference: Reference | None = None
    max_model_len: int | None = None
    rewrite_config: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    max_shard_size: str = "1GB"
    allows_twice_reference_error: bool = False
    has_float32_parts: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def vocab_size(self) -> int:
        """The number of token ids; models with other parts have it in the `text_config` of their decoder."""
        decoder: Mapping[str, Any] = self.config.get("text_config", self.config)
        return int(decoder["vocab_size"])


def variations(
    architecture: str,
    changes: Mapping[str, Mapping[str, Any]],
    *,
    base: Mapping[str, Any] = SMALL,
    reference: Reference | None = None,
    allows_twice_reference_error: bool = False,
    has_float32_parts: bool = False,
) -> tuple[ModelCase, ...]:
    """Return a case for each named change to a configuration."""
    return tuple(
        ModelCase(
            name,
            architecture,
            {**base, **change},
            reference,
            allows_twice_reference_error=allows_twice_reference_error,
            has_float32_parts=has_float32_parts,
        )
        for name, change in changes.items()
    )


def standard_cases(architecture: str) -> tuple[ModelCase, ...]:
    """Return the cases of a family whose package declares none: three decoders of Llama's shape."""
    return variations(architecture, _STANDARD_CHANGES)


Array = npt.NDArray[Any]
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NumpyReference:
    """A reference in NumPy, for families that transformers does not have; implements `Reference`.

    `shapes(config)` are the tensors of a checkpoint by name, `compute(config, weights, token_ids)` the logits of every
    position of a text, float64 [T, vocab_size] (hidden states for an encoder), from weights in float64.
    """

    shapes: Callable[[Config], Mapping[str, tuple[int, ...]]]
    compute: Callable[[Config, Mapping[str, Array], Sequence[int]], Array]

    def write(self, case: ModelCase, directory: Path) -> None:
        """Write random weights: vectors around 1, biases around 0, and matrices that preserve magnitudes."""
        from safetensors.numpy import save_file

        rng = np.random.default_rng(sum(map(ord, case.name)))
        weights = {name: _draw(rng, name, shape) for name, shape in self.shapes(case.config).items()}
        save_file(weights, directory / "model.safetensors")
        config = {"architectures": [case.architecture], **case.config}
        config = config if case.rewrite_config is None else case.rewrite_config(config)
        (directory / "config.json").write_text(json.dumps(config))

    def outputs(self, case: ModelCase, directory: Path) -> Outputs:
        """Return `compute` for the values of the checkpoint."""
        from safetensors.numpy import load_file

        stored = load_file(directory / "model.safetensors")
        return partial(self.compute, case.config, {name: array.astype(np.float64) for name, array in stored.items()})


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if len(shape) == 1:
        values = rng.normal(0, 0.5, shape) if name.endswith("bias") else rng.uniform(0.5, 1.5, shape)
    else:
        values = rng.normal(0, 1.3 * shape[-1] ** -0.5, shape)
    return values.astype(np.float32)


def architectures_of(runtime: Runtime, name: str) -> Sequence[str]:
    """Return the architectures that a plugin or package registers, or the one of this name; else none."""
    if name in runtime.architectures.names():
        return [name]
    records = [record for record in runtime.plugins if name in (record.name, record.distribution)]
    return [architecture for record in records for architecture in record.registered.get("architectures", ())]


def cases_of(runtime: Runtime, architecture: str) -> Sequence[ModelCase]:
    """Return the declared cases of an architecture, or the standard ones where its package declares none."""
    declared = runtime.architectures.find_cases(architecture)
    if declared is None:
        return standard_cases(architecture)
    return [case for case in declared if case.architecture == architecture]
