"""A file of weights that is still being downloaded: its header is there, its values are waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError

__all__ = ["ArrivingFile"]


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
            raise CheckpointError(f"{self.path} changed on the Hub while it was downloaded. Run the command again.")
        return self._whole.array(name)
