"""Writes weights to safetensors files, tensor by tensor; large models are written in shards with an index.

The header of a file comes before its values, so shapes and dtypes are declared before values are computed. A model that
does not fit into memory can therefore be written. (`safetensors.numpy.save_file` takes all arrays at once.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.source import dtype_names

__all__ = ["DEFAULT_SHARD_BYTES", "TensorGroup", "TensorSpec", "write_safetensors"]

DEFAULT_SHARD_BYTES = 5_000_000_000
"""The largest size of a file, unless one tensor is larger; the default of transformers' `save_pretrained`."""

_ALIGNMENT = 8


class TensorSpec(NamedTuple):
    """A tensor to write: its name, safetensors' name of its dtype, and its shape."""

    name: str
    dtype_name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return math.prod(self.shape) * dtype_names()[self.dtype_name].itemsize


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors whose values are computed together; `arrays()` returns them in the order of `specs`."""

    specs: tuple[TensorSpec, ...]
    arrays: Callable[[], Sequence[npt.NDArray[Any]]]

    @property
    def nbytes(self) -> int:
        """Size of all values in bytes."""
        return sum(spec.nbytes for spec in self.specs)


def write_safetensors(
    directory: Path,
    groups: Sequence[TensorGroup],
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `model.safetensors`, or shards with `model.safetensors.index.json`, into an existing directory.

    `on_progress` is called with bytes (done, total). OSError if the disk is full.
    """
    shards = _shards(groups, max_shard_bytes)
    total, done = sum(group.nbytes for group in groups), 0
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map.update({spec.name: name for group in shard for spec in group.specs})
        for nbytes in _write_shard(directory / name, shard):
            done += nbytes
            if on_progress is not None:
                on_progress(done, total)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(groups: Sequence[TensorGroup], max_shard_bytes: int) -> list[list[TensorGroup]]:
    """Divide groups, in order, into shards of up to `max_shard_bytes`; a larger group is a shard by itself."""
    shards: list[list[TensorGroup]] = [[]]
    num_bytes = 0
    for group in groups:
        if shards[-1] and num_bytes + group.nbytes > max_shard_bytes:
            shards.append([])
            num_bytes = 0
        shards[-1].append(group)
        num_bytes += group.nbytes
    return shards


def _write_shard(path: Path, groups: Sequence[TensorGroup]) -> Iterator[int]:
    """Write one file; yields the bytes of each group when it is written."""
    specs = [spec for group in groups for spec in group.specs]
    # Wide elements first, as the safetensors library orders them, so that every tensor is aligned.
    by_width = sorted(specs, key=lambda spec: -dtype_names()[spec.dtype_name].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins: dict[str, int] = {}
    position = 0
    for spec in by_width:
        end = position + spec.nbytes
        header[spec.name] = {"dtype": spec.dtype_name, "shape": list(spec.shape), "data_offsets": [position, end]}
        begins[spec.name], position = position, end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        data_begin = file.tell()
        file.truncate(data_begin + position)
        for group in groups:
            for spec, array in zip(group.specs, group.arrays(), strict=True):
                dtype = dtype_names()[spec.dtype_name]
                assert (array.dtype, array.shape) == (dtype, spec.shape), f"{spec} got {array.dtype}{array.shape}"
                file.seek(data_begin + begins[spec.name])
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            yield group.nbytes
