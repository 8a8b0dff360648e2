"""A reference for families that transformers does not have: the author's own NumPy, a whole text at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.testing.families.case import ModelCase, Outputs

__all__ = ["NumpyReference"]

Array = npt.NDArray[Any]
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NumpyReference:
    """Two functions of a configuration; implements `Reference`.

    `shapes(config)` are the tensors of a checkpoint by name, `compute(config, weights, token_ids)` the logits of every
    position, float64 [T, vocab_size] (of an encoder its hidden states), from weights in float64.
    """

    shapes: Callable[[Config], Mapping[str, tuple[int, ...]]]
    compute: Callable[[Config, Mapping[str, Array], Sequence[int]], Array]

    def write(self, case: ModelCase, directory: Path) -> None:
        """Vectors of weights are around 1 and biases around 0; matrices keep the size of what passes."""
        from safetensors.numpy import save_file

        rng = np.random.default_rng(sum(map(ord, case.name)))
        weights = {name: _draw(rng, name, shape) for name, shape in self.shapes(case.config).items()}
        save_file(weights, directory / "model.safetensors")
        config = {"architectures": [case.architecture], **case.config}
        config = config if case.rewrite_config is None else case.rewrite_config(config)
        (directory / "config.json").write_text(json.dumps(config))

    def outputs(self, case: ModelCase, directory: Path) -> Outputs:
        """The function over the checkpoint's values."""
        from safetensors.numpy import load_file

        stored = load_file(directory / "model.safetensors")
        return partial(self.compute, case.config, {name: array.astype(np.float64) for name, array in stored.items()})


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if len(shape) == 1:
        values = rng.normal(0, 0.5, shape) if name.endswith("bias") else rng.uniform(0.5, 1.5, shape)
    else:
        values = rng.normal(0, 1.3 * shape[-1] ** -0.5, shape)
    return values.astype(np.float32)
