"""Checkpoints of NVIDIA's ModelOpt: FP8 and NVFP4 (`checkpoint.fp8`, `checkpoint.fp4`), by `quant_algo` of the config.

Scales of activations and of the KV cache are not used: kernels compute their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.checkpoint.fp4 import Fp4Checkpoint, has_fp4
from aethermind.checkpoint.fp8 import Fp8Checkpoint, has_fp8
from aethermind.checkpoint.quantized_tensors import without_activation_scales
from aethermind.checkpoint.source import StoredTensors
from aethermind.errors import CheckpointError, ConfigError

__all__ = ["open_modelopt"]

_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MIXED_PRECISION")


def open_modelopt(stored: StoredTensors, described: Mapping[str, Any], where: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `where` names the model in messages.

    ConfigError for another algorithm, CheckpointError if there are no quantised matrices or their parts do not fit.
    """
    algorithm = described.get("quant_algo")
    if algorithm not in _ALGORITHMS:
        raise ConfigError(
            f"{where!r} is quantised by ModelOpt to {algorithm!r:.40}; {', '.join(_ALGORITHMS)} can be read. Use the "
            "unquantised model and pass a format as quantization."
        )
    view = without_activation_scales(stored)
    if has_fp8(view):
        view = Fp8Checkpoint(view, None, where)
    elif not has_fp4(view):
        raise CheckpointError(
            f"{where} says that it is quantised by ModelOpt, and has no quantised matrix. Take quantization_config out "
            "of config.json if its weights are not quantised."
        )
    return Fp4Checkpoint(view, where) if has_fp4(view) else view
