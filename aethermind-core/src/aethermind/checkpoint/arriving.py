"""Files of weights that are still being downloaded: their headers are there, their values are waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.gguf_tensors import CONFIGURATION_TENSORS
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError

if TYPE_CHECKING:
    from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["ArrivingFile", "ArrivingGguf"]


class ArrivingFile:
    """The tensors of a .safetensors file that will be at `path`; implements `TensorFile`.

    Tensors are described by the `header`, a file of the final size whose values are missing. The first use of a value
    calls `wait`, which returns when the whole file is at `path`, and raises what the download failed with.
    """

    def __init__(self, path: Path, header: SafetensorsFile, wait: Callable[[], object]) -> None:
        self.path = path
        self._header = header
        self._wait = wait
        self._whole: SafetensorsFile | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self._header.names

    @property
    def total_bytes(self) -> int:
        return self._header.total_bytes

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        return self._header.info(name)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values as soon as the file is whole. Raises CheckpointError for an unknown name."""
        info = self.info(name)
        if self._whole is None:
            self._wait()
            self._whole = SafetensorsFile(self.path)
        if self._whole.info(name) != info:
            raise _changed(self.path)
        return self._whole.array(name)


class ArrivingGguf(GgufFile):
    """A .gguf file that will be at `path`, described by its header, which is in a file of the final size.

    Metadata, and the tensors that are configuration, are those of the header. The first use of another tensor's values
    calls `wait`, as in `ArrivingFile`.
    """

    def __init__(self, path: Path, header: Path, wait: Callable[[], object]) -> None:
        """Read the header. Raises CheckpointError as `GgufFile` does, about the file of the header."""
        super().__init__(header)
        self.path = path
        self._wait: Callable[[], object] | None = wait

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """Return a tensor's values (`GgufFile.array`) as soon as the file is whole."""
        if name not in CONFIGURATION_TENSORS:
            self._map_whole_file()
        return super().array(name)

    def values(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a tensor's values (`GgufFile.values`) as soon as the file is whole."""
        self._map_whole_file()
        return super().values(name, dtype)

    def _map_whole_file(self) -> None:
        """Map the file instead of its header, which is not read again."""
        if self._wait is None:
            return
        self._wait()
        whole, end = self._map_file(), self._data_begin
        if len(whole) != self.num_bytes or whole[:end] != self.map[:end]:
            raise _changed(self.path)
        self.map, self._wait = whole, None


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} changed on the Hub while it was downloaded. Run the command again.")
