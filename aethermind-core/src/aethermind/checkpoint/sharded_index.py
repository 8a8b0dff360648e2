"""A model directory's weights as one set of tensors, whether they lie in one file or in shards with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError

__all__ = ["Checkpoint", "INDEX_NAME", "SINGLE_NAME"]

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_UNREADABLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.safetensors")


class Checkpoint:
    """Tensors by name over one or more mapped files; implements `TensorSource`. Immutable."""

    def __init__(self, file_of_name: Mapping[str, SafetensorsFile]) -> None:
        """Join files that are already open; use `open` for a directory."""
        self._file_of_name = dict(file_of_name)

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Map the weights of a model directory in the Hugging Face layout.

        `model.safetensors` is taken first, else the shards that `model.safetensors.index.json` lists.

        Raises:
            CheckpointError: there are no weights; a file is corrupt; the index and its shards disagree.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise CheckpointError(f"{directory} is not a directory. Pass the directory of a model.")
        if (directory / SINGLE_NAME).is_file():
            file = SafetensorsFile(directory / SINGLE_NAME)
            return cls(dict.fromkeys(file.tensors, file))
        if (directory / INDEX_NAME).is_file():
            return cls(_open_shards(directory / INDEX_NAME))
        others = sorted({path.name for pattern in _UNREADABLE_PATTERNS for path in directory.glob(pattern)})
        found = f"found {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}" if others else "found neither"
        raise CheckpointError(
            f"{directory} has no weights: looked for {SINGLE_NAME} and {INDEX_NAME}, {found}. Put the model's "
            "safetensors files there, or pass --load-format dummy to run with made-up weights."
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order of the file or the index."""
        return tuple(self._file_of_name)

    @property
    def total_bytes(self) -> int:
        """Size of all values together."""
        return sum(file.tensors[name].num_bytes for name, file in self._file_of_name.items())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors, in the order in which they first occur."""
        return tuple(dict.fromkeys(file.path for file in self._file_of_name.values()))

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor; its offsets are those in its own file. Raises CheckpointError for an unknown name."""
        return self._file(name).info(name)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values: a read-only view on its file. Raises CheckpointError for an unknown name."""
        return self._file(name).array(name)

    def _file(self, name: str) -> SafetensorsFile:
        file = self._file_of_name.get(name)
        if file is None:
            raise CheckpointError(f"The checkpoint has no tensor {name!r} among its {len(self._file_of_name)}.")
        return file


def _open_shards(index: Path) -> dict[str, SafetensorsFile]:
    weight_map = _read_weight_map(index)
    shards = {shard: _open_shard(index, shard) for shard in dict.fromkeys(weight_map.values())}
    for name, shard in weight_map.items():
        if name not in shards[shard].tensors:
            raise CheckpointError(
                f"{index} puts tensor {name!r} into {shard}, which does not have it among its "
                f"{len(shards[shard].tensors)}. Fetch the index and its {len(shards)} shards from one place."
            )
    for shard, file in shards.items():
        for name in file.tensors:
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{shard} has a tensor {name!r}, which {index} puts into {weight_map.get(name, 'no shard')}. "
                    f"Fetch the index and its {len(shards)} shards from one place."
                )
    return {name: shards[shard] for name, shard in weight_map.items()}


def _read_weight_map(index: Path) -> dict[str, str]:
    try:
        content = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{index} is not readable JSON ({reason}). Fetch the file again.") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map from tensor names to shards. Fetch the file again.")
    for name, shard in weight_map.items():
        # A shard lies beside its index; any path, however it is written, could read files elsewhere.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            raise CheckpointError(
                f"{index} puts tensor {name!r} into {shard!r}, which is not the plain name of a .safetensors file "
                "in the same directory. Do not use this checkpoint unless you trust it; correct the index if you do."
            )
    return weight_map


def _open_shard(index: Path, shard: str) -> SafetensorsFile:
    path = index.parent / shard
    if not path.is_file():
        raise CheckpointError(f"{index} names the shard {shard}, which is not in the directory. Fetch it as well.")
    return SafetensorsFile(path)
