"""A checkpoint that is looked at while a model reads it, and one with a single thing wrong with it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.model_weights import open_weights
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["AlteredTensors", "read_parameters"]


class AlteredTensors:
    """Stored tensors but for some of another shape, or without one (a shape of None); implements `StoredTensors`.

    Values are numbers that no two elements share, in float64; `read` are the names whose values were taken.
    """

    def __init__(self, stored: StoredTensors, shapes: Mapping[str, tuple[int, ...] | None] | None = None) -> None:
        self._infos = {name: stored.info(name) for name in stored.names}
        self._stored = stored
        self.read: set[str] = set()
        template = next(iter(self._infos.values()))
        for name, shape in (shapes or {}).items():
            self._infos.pop(name, None)
            if shape is not None:
                self._infos[name] = replace(template, shape=shape)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._infos)

    @property
    def total_bytes(self) -> int:
        return self._stored.total_bytes

    @property
    def paths(self) -> tuple[Path, ...]:
        return self._stored.paths

    @property
    def neutral_names(self) -> tuple[str, ...]:
        return ()

    def info(self, name: str) -> TensorInfo:
        if name not in self._infos:
            raise CheckpointError(f"The checkpoint has no tensor {name!r}.")
        return self._infos[name]

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        shape = self.info(name).shape
        self.read.add(name)
        return np.random.default_rng(zlib.crc32(name.encode())).random(shape)


def read_parameters(compiled: CompiledModel, stored: AlteredTensors) -> dict[str, npt.NDArray[Any]]:
    """Every parameter of the model as it comes from these tensors; CheckpointError where they do not fit."""
    weights = open_weights(replace(compiled, source=cast(Any, _Holder(stored))))
    names = [name for name in compiled.parameter_types if name not in compiled.computed]
    return {name: np.asarray(weights.array(name)) for name in names}


class _Holder:
    """Of a model's source, its tensors."""

    def __init__(self, stored: AlteredTensors) -> None:
        self._stored = stored

    def weights(self) -> AlteredTensors:
        return self._stored
