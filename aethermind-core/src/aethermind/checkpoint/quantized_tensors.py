"""What the checkpoints of all quantisation methods share: some of their tensors are read as quantised weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt

from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.log import get_logger
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["QuantizedTensors", "warn_of_requantised", "without_activation_scales"]

logger = get_logger(__name__)


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


_ACTIVATION_PARTS = tuple(
    f".{activation}_{part}"
    for activation in ("input", "output", "k", "v", "q")
    for part in ("scale", "zero_point", "global_scale")
)


class _WithoutActivationScales(QuantizedTensors):
    """Stored tensors without scales and zero points of activations and of the KV cache."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._infos = {}
        self._others = tuple(name for name in stored.names if not name.endswith(_ACTIVATION_PARTS))

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """A tensor's values. Raises CheckpointError for an unknown name."""
        return self._stored.array(name)


def without_activation_scales(stored: StoredTensors) -> StoredTensors:
    """Leave out scales and zero points of activations and of the KV cache: kernels compute their own."""
    return _WithoutActivationScales(stored)


@cache
def warn_of_requantised(where: str, count: int, total: int, why: str) -> None:
    """Warn once of `count` out of `total` matrices that are requantised as int8, if there are any: they "have …".

    A model's weights are opened several times while it is loaded.
    """
    if count:
        logger.warning(
            "%s: %d of its %d quantised matrices %s, which no kernel computes; they are requantised as int8, with an "
            "error of up to 1/254 of the largest of 32 values.",
            *(where, count, total, why),
        )
