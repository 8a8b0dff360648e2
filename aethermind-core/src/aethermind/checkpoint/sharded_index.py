"""`Checkpoint`: the weights of a model directory as one set of tensors, from one file or from shards with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.source import TensorFile, TensorInfo
from aethermind.checkpoint.torch_pickle import TorchFile
from aethermind.errors import CheckpointError, remedy
from aethermind.plugins.compatibility import deprecated_fields

__all__ = ["Checkpoint"]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The file names of one kind of weights in a directory: a single file, or an index and shards with a suffix."""

    single: str
    suffix: str
    open: Callable[[Path], TensorFile]

    @property
    def index(self) -> str:
        return f"{self.single}.index.json"


_LAYOUTS = (
    _Layout("model.safetensors", ".safetensors", SafetensorsFile),
    _Layout("pytorch_model.bin", ".bin", TorchFile),
)
_SINGLE_FILES: tuple[tuple[tuple[str, ...], Callable[[Path], TensorFile]], ...] = (
    (("*.safetensors",), SafetensorsFile),
    (("*.pt", "*.pth"), TorchFile),
)
"""Patterns of files with other names, which are read if a directory has exactly one of them."""
_OTHER_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.safetensors")
_NOT_THE_MODEL = ("adapter_model.safetensors", "consolidated.safetensors")
"""Files that are not the model: an adapter, and a copy of the model with other tensor names."""


class NoWeightsError(CheckpointError):
    """A directory contains no weights; `found` lists the expected and the existing files, without a full stop."""

    def __init__(self, found: str) -> None:
        self.found = found
        super().__init__(
            f"{found}. Put the model's weights there, or pass load_format='dummy' to run with random ones."
        )

    def __reduce__(self) -> tuple[type[NoWeightsError], tuple[str]]:
        return NoWeightsError, (self.found,)


@deprecated_fields(until="0.4", neutral_names="zero_bias_names")
class Checkpoint:
    """Tensors by name in one or more mapped files; implements `StoredTensors`. Immutable."""

    def __init__(self, file_of_name: Mapping[str, TensorFile]) -> None:
        """Join open files; use `open` for a directory."""
        self._file_of_name = dict(file_of_name)

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Map the weights of a model directory in the Hugging Face layout.

        `model.safetensors` is taken first, else the shards that `model.safetensors.index.json` lists, else
        `pytorch_model.bin` or its shards, else the only .safetensors file, or the only .pt or .pth file. All but
        .safetensors need torch.

        Raises:
            CheckpointError: there are no weights; a file is corrupt; the index and its shards disagree; torch is
                needed and not installed.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise CheckpointError(f"{directory} is not a directory. Pass the directory of a model.")
        for layout in _LAYOUTS:
            if (directory / layout.single).is_file():
                file = layout.open(directory / layout.single)
                return cls(dict.fromkeys(file.names, file))
            if (directory / layout.index).is_file():
                return cls(_open_shards(directory / layout.index, layout))
        for patterns, open_file in _SINGLE_FILES:
            paths = [path for pattern in patterns for path in directory.glob(pattern)]
            candidates = [path for path in paths if path.name not in _NOT_THE_MODEL]
            if len(candidates) == 1:
                file = open_file(candidates[0])
                return cls(dict.fromkeys(file.names, file))
        existing = sorted({path.name for pattern in _OTHER_PATTERNS for path in directory.glob(pattern)})
        found = (
            f"found {', '.join(existing[:5])}{', ...' if len(existing) > 5 else ''}"
            if existing
            else "found none of them"
        )
        expected = ", ".join(name for layout in _LAYOUTS for name in (layout.single, layout.index))
        raise NoWeightsError(
            f"{directory} has no weights: looked for {expected} and a single .safetensors, .pt or .pth file, {found}"
        )

    def with_files(self, replacement: Callable[[TensorFile], TensorFile]) -> Checkpoint:
        """Return the same names with another object for each file."""
        files = {
            id(file): replacement(file) for file in {id(file): file for file in self._file_of_name.values()}.values()
        }
        return Checkpoint({name: files[id(file)] for name, file in self._file_of_name.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order of the file or the index."""
        return tuple(self._file_of_name)

    @property
    def total_bytes(self) -> int:
        """Size of all values together."""
        return sum(file.info(name).num_bytes for name, file in self._file_of_name.items())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors, in the order in which they first occur."""
        return tuple(dict.fromkeys(file.path for file in self._file_of_name.values()))

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        """Empty: the files do not say which tensors were added by a tool."""
        return ()

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor; its offsets are those in its own file. Raises CheckpointError for an unknown name."""
        return self._file(name).info(name)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values, read-only, as a view of its file if possible.

        Raises CheckpointError for an unknown name.
        """
        return self._file(name).array(name)

    def _file(self, name: str) -> TensorFile:
        file = self._file_of_name.get(name)
        if file is None:
            raise CheckpointError(f"The checkpoint has no tensor {name!r} among its {len(self._file_of_name)}.")
        return file


def _open_shards(index: Path, layout: _Layout) -> dict[str, TensorFile]:
    """Open the shards of an index; returns the file of each tensor. CheckpointError if index and shards disagree."""
    weight_map = _read_weight_map(index, layout.suffix)
    shards = {shard: _open_shard(index, shard, layout) for shard in dict.fromkeys(weight_map.values())}
    names = {shard: frozenset(file.names) for shard, file in shards.items()}
    for name, shard in weight_map.items():
        if name not in names[shard]:
            raise CheckpointError(
                f"{index} puts tensor {name!r} into {shard}, which does not have it among its "
                f"{len(names[shard])}. Fetch the index and its {len(shards)} shards from one place."
            )
    for shard, file in shards.items():
        for name in file.names:
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{shard} has a tensor {name!r}, which {index} puts into {weight_map.get(name, 'no shard')}. "
                    f"Fetch the index and its {len(shards)} shards from one place."
                )
    return {name: shards[shard] for name, shard in weight_map.items()}


def _read_weight_map(index: Path, suffix: str) -> dict[str, str]:
    """Read the shard's file name of each tensor; CheckpointError for anything but plain names with the suffix."""
    try:
        content = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{index} is not readable JSON ({reason}). {remedy(index, error)}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map from tensor names to shards. Fetch the file again.")
    for name, shard in weight_map.items():
        # A shard is in the directory of its index; a path could read files elsewhere.
        if not isinstance(shard, str) or not shard.endswith(suffix) or set(shard) & set("/\\:\0"):
            raise CheckpointError(
                f"{index} puts tensor {name!r} into {shard!r}, which is not the plain name of a {suffix} file "
                "in the same directory. Do not use this checkpoint unless you trust it; correct the index if you do."
            )
    return weight_map


def _open_shard(index: Path, shard: str, layout: _Layout) -> TensorFile:
    path = index.parent / shard
    if not path.is_file():
        raise CheckpointError(f"{index} names the shard {shard}, which is not in the directory. Fetch it as well.")
    return layout.open(path)
