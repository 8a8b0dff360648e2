"""A model in several .gguf files, as `llama-gguf-split` cuts large ones: metadata in the first, tensors in all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy.typing as npt

from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["GgufParts"]

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_COUNT, _NUMBER = "split.count", "split.no"


class GgufParts:
    """Tensors by GGUF's names over one or more mapped files; implements `TensorSource`. Immutable."""

    def __init__(self, path: Path) -> None:
        """Map the file at `path`, and the other parts beside it where it is the first of several.

        Raises:
            CheckpointError: it is another part than the first; a part is missing or of another model; and whatever is
                wrong with a file.
        """
        self.path = path
        first = GgufFile(path)
        count = first.metadata.get(_COUNT, 1)
        if not isinstance(count, int):
            first.fail(f"has {_COUNT} {count!r:.40}, which is no number")
        self._files = [first, *(self._part(first, number, count) for number in range(1, count))]
        self._file_of_name: dict[str, GgufFile] = {}
        for file in self._files:
            for name in file.names:
                if name in self._file_of_name:
                    file.fail(f"has the tensor {name!r:.80}, which another part has, too")
                self._file_of_name[name] = file
        total = first.metadata.get("split.tensors.count", len(self._file_of_name))
        if total != len(self._file_of_name):
            first.fail(f"is cut into parts with {len(self._file_of_name)} tensors of {total!r:.40}")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """That of the first part."""
        return self._files[0].metadata

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in order."""
        return tuple(file.path for file in self._files)

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order of the parts."""
        return tuple(self._file_of_name)

    @property
    def total_bytes(self) -> int:
        """Size of all values together. Raises CheckpointError where tensors are of types that cannot be read."""
        return sum(file.total_bytes for file in self._files)

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor; see `GgufFile.info`."""
        return self._file_of_name.get(name, self._files[0]).info(name)

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """A tensor's values; see `GgufFile.array`."""
        return self._file_of_name.get(name, self._files[0]).array(name)

    def fail(self, problem: str) -> NoReturn:
        """Raise the CheckpointError of files that are not what they should be."""
        self._files[0].fail(problem)

    def _part(self, first: GgufFile, number: int, count: int) -> GgufFile:
        named = _NAME.fullmatch(self.path.name)
        if first.metadata.get(_NUMBER, 0) != 0 or named is None or int(named["count"]) != count:
            raise CheckpointError(
                f"{self.path} is one of {count} parts of a model. Pass the first, whose name ends with "
                f"-00001-of-{count:05d}.gguf, with the others beside it."
            )
        path = self.path.with_name(f"{named['stem']}-{number + 1:05d}-of-{count:05d}{self.path.suffix}")
        if not path.is_file():
            raise CheckpointError(f"{path}, part {number + 1} of {count} of the model, is not there. Fetch it as well.")
        part = GgufFile(path)
        if (part.metadata.get(_NUMBER), part.metadata.get(_COUNT)) != (number, count):
            part.fail(f"is not part {number + 1} of {count}, as it is named")
        return part
