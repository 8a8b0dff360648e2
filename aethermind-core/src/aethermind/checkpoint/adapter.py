"""One LoRA adapter on disk, as PEFT writes it: adapter_config.json and adapter_model.safetensors.

Of a linear module the file has two thin matrices, `base_model.model.MODULE.lora_A.weight` [r, K] and `lora_B.weight`
[N, r], perhaps with the adapter's name before `weight`; scaled and multiplied they are what is added to its weight.
`fan_in_fan_out` says how the weight itself is stored and changes nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.adapter_config import AdapterConfig
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.errors import CheckpointError

__all__ = ["Adapter", "LowRankUpdate"]

_FILE = "adapter_model.safetensors"
_NAME = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(?:\.[^.]+)?\.weight$")
_FLOATS = ("F32", "F16", "BF16")
_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """What an adapter adds to one weight [N, K]: upᵀ · down.

    `down` is [r, K] as it is stored, `up` float32 [r, N] and scaled.
    """

    down: npt.NDArray[Any]
    up: npt.NDArray[np.float32]

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that fits a model: its updates by weight, and a digest of all that they are."""

    updates: Mapping[str, LowRankUpdate]
    digest: bytes

    @classmethod
    def read(cls, directory: Path, weights: Mapping[str, tuple[int, int]]) -> Adapter:
        """Read an adapter for a model whose linear modules have these weights, [N, K] by name.

        Raises ConfigError for a configuration that is broken or asks for what is not supported, CheckpointError for
        tensors that are not exactly those of such an adapter: names, pairs, shapes, dtypes, finite values.
        """
        config = AdapterConfig.read(directory)
        file = _open(directory)
        sides = _sides(file, weights)
        modules = {name.removesuffix(".weight"): name for name in weights}
        missing = [f"{module}.lora_{side}" for module, pair in sides.items() for side in "AB" if side not in pair]
        missing += [f"{module}.lora_A" for module in config.missing(sides, modules)]
        if missing or not sides:
            raise CheckpointError(
                f"{file.path} lacks {_listing(missing) or 'every tensor'}, which its configuration promises. Fetch or "
                "write the adapter again."
            )
        updates: dict[str, LowRankUpdate] = {}
        seen = sha256()
        for module, pair in sorted(sides.items()):
            name, scale = modules[module], config.scale_of(module)
            num_outputs, num_inputs = weights[name]
            rank = config.rank_of(module)
            down = _read(file, pair["A"], (rank, num_inputs))
            up = _read(file, pair["B"], (num_outputs, rank))
            updates[name] = LowRankUpdate(down, np.ascontiguousarray(up.T).astype(np.float32) * np.float32(scale))
            for array in (down, up):
                seen.update(repr((module, scale, str(array.dtype), array.shape)).encode())
                seen.update(np.ascontiguousarray(array).view(np.uint8).data)
        return cls(updates, seen.digest())


def _open(directory: Path) -> SafetensorsFile:
    path = directory / _FILE
    if not path.is_file():
        others = sorted(entry.name for entry in directory.glob("adapter_model.*"))
        found = f"found {', '.join(others)}" if others else "found nothing like it"
        raise CheckpointError(
            f"{str(directory)!r} has no {_FILE} ({found}). Save the adapter with PEFT's save_pretrained, which writes "
            "safetensors."
        )
    return SafetensorsFile(path)


def _sides(file: SafetensorsFile, weights: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, str]]:
    """By module, the names of its two tensors. CheckpointError for a tensor that belongs to no weight."""
    sides: dict[str, dict[str, str]] = {}
    unknown = []
    for name in file.names:
        found = _NAME.match(name)
        if found is None or f"{found['module']}.weight" not in weights:
            unknown.append(name)
            continue
        pair = sides.setdefault(found["module"], {})
        if found["side"] in pair:
            raise CheckpointError(f"{file.path} has {pair[found['side']]} and {name}, which are the same matrix.")
        pair[found["side"]] = name
    if unknown:
        raise CheckpointError(
            f"{file.path} has {len(unknown)} tensors that belong to no linear projection of the model "
            f"({_listing(unknown)}). Check that the adapter was trained for this model; embeddings, the output matrix "
            "and whole modules cannot be adapted."
        )
    return sides


def _read(file: SafetensorsFile, name: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
    info = file.info(name)
    if info.shape != shape:
        raise CheckpointError(
            f"{name} in {file.path} is {list(info.shape)} instead of {list(shape)}. Check that the adapter was trained "
            "for this model, and that its configuration belongs to it."
        )
    if info.dtype_name not in _FLOATS:
        raise CheckpointError(f"{name} in {file.path} is stored in {info.dtype_name}, not in {', '.join(_FLOATS)}.")
    array = file.array(name)
    if not np.isfinite(array.astype(np.float32)).all():
        raise CheckpointError(f"{name} in {file.path} contains NaN or infinity. Train or fetch the adapter again.")
    return array


def _listing(items: list[str]) -> str:
    rest = len(items) - _MAX_LISTED
    return ", ".join(items[:_MAX_LISTED]) + (f", and {rest} more" if rest > 0 else "")
