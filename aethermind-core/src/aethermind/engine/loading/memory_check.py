"""The check that a model fits into memory, before its weights are read; if it does not, which options would fit."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.memory_estimate import MemoryEstimate, MemoryPlanner, memory_limit
from aethermind.errors import AetherMindError, OutOfMemoryError

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.runtime import Runtime

__all__ = ["PART_TITLES", "check_memory", "fitting_options"]

_FORMATS = ("int8", "int4")
"""Weight formats that are suggested, the more exact first; every device has kernels or references for them."""
_SEARCH_S = 0.6
"""Seconds after which no further weight format is tried, so that the error is raised soon."""
PART_TITLES = {"kv_cache": "KV cache", "process": "the process itself", "bookkeeping": "requests"}
"""Titles of parts of a `MemoryEstimate` in messages, if they differ from the names."""


def check_memory(runtime: Runtime, model: str | Path, compiled: CompiledModel, config: EngineConfig) -> MemoryEstimate:
    """Return the memory that a compiled model takes; OutOfMemoryError if there is less, with options that would fit."""
    limit, estimate = memory_limit(compiled), MemoryPlanner(compiled).estimate()
    # On a device with memory of its own, `fitting_num_blocks` has chosen as many blocks as fit, unless they were given.
    is_chosen = config.num_kv_blocks is None and not compiled.open_device.backend.capabilities.is_host_accessible
    if limit is None or is_chosen or estimate.device_bytes <= limit:
        return estimate
    device = compiled.open_device.device
    parts = ", ".join(
        f"{PART_TITLES.get(name, name)} {_size(nbytes)}"
        for name, nbytes in sorted(estimate.device.items(), key=lambda part: -part[1])
        if nbytes >= estimate.device_bytes / 100
    )
    by = " by --memory" if limit == config.memory_bytes else ""
    options = fitting_options(runtime, model, compiled, config, limit)
    advice = f"it fits with {', or with '.join(options)}" if options else "choose a smaller model"
    raise OutOfMemoryError(
        f"{Path(model).name} takes {_size(estimate.device_bytes)} on {device} ({parts}), and {_size(limit)} may be "
        f"used{by}: {advice}."
    )


def fitting_options(
    runtime: Runtime, model: str | Path, compiled: CompiledModel, config: EngineConfig, limit: int
) -> list[str]:
    """Return options, each of which lets a model fit into `limit` bytes: the largest context, the largest batch, the
    number of KV blocks if one was given, and weight formats.
    """
    planner, found = MemoryPlanner(compiled), []
    if config.num_kv_blocks is not None and (num_blocks := planner.num_fitting_blocks(limit)):
        found.append(f"--num-kv-blocks {num_blocks}")
    if not compiled.is_encoder and 0 < (context := planner.largest_context(limit)) < compiled.max_model_len:
        found.append(f"--max-model-len {context}")
    if not compiled.is_encoder and 0 < (batch := planner.largest_batch(limit)) < config.max_num_seqs:
        found.append(f"--max-num-seqs {batch}")
    started = time.monotonic()
    for format in _FORMATS:
        if time.monotonic() - started > _SEARCH_S:
            break
        if format != config.quantization and _fits_in(
            runtime, model, compiled, replace(config, quantization=format), limit
        ):
            found.append(f"--quantization {format}")
    return found


def _fits_in(runtime: Runtime, model: str | Path, compiled: CompiledModel, config: EngineConfig, limit: int) -> bool:
    """Whether a model fits with another configuration and the requested context length, or else with any."""
    length = config.max_model_len or 1
    config = replace(config, num_kv_blocks=compiled.cache_spec.num_blocks_for(length), fallback="allow")
    try:
        other = compile_model(runtime, model, config, opened=compiled.open_device)
    except AetherMindError:
        return False
    return MemoryPlanner(other).estimate().device_bytes <= limit


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >> 30 else f"{nbytes / (1 << 20):.1f} MiB"
