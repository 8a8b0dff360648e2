"""What the checkpoints of all quantisation methods share: some of their tensors are read as quantised weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aethermind.checkpoint.source import StoredTensors, TensorInfo

__all__ = ["QuantizedTensors"]


class QuantizedTensors:
    """Stored tensors, of which some are parts of quantised weights; with `array`, it implements `StoredTensors`.

    A class fills `_infos`, the descriptions of quantised weights by name, and `_others`, the names of the tensors that
    are read as they are stored.
    """

    _stored: StoredTensors
    _infos: Mapping[str, TensorInfo]
    _others: Sequence[str]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return self._stored.paths

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, quantised weights last."""
        return (*self._others, *self._infos)

    @property
    def total_bytes(self) -> int:
        """Size of all values together, as they are stored."""
        return self._stored.total_bytes

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        """Those of the stored tensors."""
        return self._stored.zero_bias_names

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        return self._infos.get(name) or self._stored.info(name)
