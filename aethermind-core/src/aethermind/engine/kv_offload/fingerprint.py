"""What keys and values depend on besides tokens, in a few digits: engines that agree on it can use each other's."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

import aethermind
from aethermind.checkpoint.file_digest import digest_files

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.ops.schema import TensorType

__all__ = ["fingerprint"]


def fingerprint(planned: PlannedModel) -> str:
    """32 hexadecimal digits over weights, configuration, numbers and code.

    Weights count by their values (every byte of their files, wherever these lie), dummy ones by what makes them. Limits
    such as the number of blocks do not count, and neither does the length of the context, except where rotary
    frequencies depend on it: what comes from the configuration counts by its values too. Other devices round otherwise,
    and another version of AetherMind may. So do other numbers of ranks, which add up in another order, but that changes
    no more than another batch does: it counts only for engines that are deterministic, whose batches change nothing.
    """
    config, spec = planned.config, planned.cache_spec
    if config.load_format == "dummy":
        shapes = {name: str(type) for name, type in sorted(_whole_types(planned).items())}
        weights = json.dumps(["dummy", config.seed, shapes])
    else:
        weights = digest_files(planned.source.weights().paths)
    described = {
        "version": aethermind.__version__,
        "weights": weights,
        "architecture": planned.architecture,
        "config": planned.source.config(),
        "computed": {name: _digest(value) for name, value in sorted(planned.computed.items())},
        "dtype": planned.dtype.label,
        "quantization": config.quantization,
        "device": planned.open_device.backend.name,
        "deterministic": config.deterministic,
        "ranks": config.tensor_parallel_size if config.deterministic else None,
        "kv": [spec.num_layers, spec.num_key_value_heads, spec.head_dim, spec.dtype_name, spec.block_size],
    }
    return sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _whole_types(planned: PlannedModel) -> dict[str, TensorType]:
    """Those of the parameters of the whole model, whichever part of them is planned."""
    parts = {} if planned.parallel is None else planned.parallel.parts
    return {
        part.parameter if (part := parts.get(name)) else name: part.whole if part else type
        for name, type in planned.parameter_types.items()
    }


def _digest(value: object) -> str:
    array = np.ascontiguousarray(value)
    return sha256(repr((array.shape, str(array.dtype))).encode() + array.tobytes()).hexdigest()
