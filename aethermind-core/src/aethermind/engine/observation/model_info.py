"""A description of a loaded model for display."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from aethermind.engine.engine import Engine
from aethermind.engine.loading.weight_formats import format_uses
from aethermind.engine.policies import ignored_options
from aethermind.errors import ConfigError
from aethermind.log import get_logger
from aethermind.model.hub import title_of

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["ModelInfo", "describe_model", "log_loaded"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded, on which device, and its sizes.

    `model` is the path, or the name on the Hugging Face Hub. `placement` is one line on kernels and fallbacks,
    `weight_formats` are those of weights that are not dense, `ignored_options` are request options that the scheduling
    policy does not use, `adapters` the names for requests.
    """

    model: str
    architecture: str
    device: str
    device_reason: str
    dtype: str
    num_threads: int
    max_model_len: int
    num_kv_blocks: int
    block_size: int
    num_parameters: int
    weight_bytes: int
    kv_cache_bytes: int
    arena_bytes: int
    load_s: float
    placement: str
    num_native_breaks: int
    weight_formats: tuple[str, ...] = ()
    ignored_options: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    state_bytes: int = 0
    """Those of `kv_cache_bytes` that are recurrent states, a fixed number for each of the requests that run at once."""
    has_context_shift: bool = False
    """Whether prompts and answers may be longer than the context (see `engine.scheduling.context_shift`)."""
    is_embedding_model: bool = False
    """Whether the model was trained for vectors of texts: an encoder, or one whose files say how to pool."""


def log_loaded(info: ModelInfo) -> None:
    """Log the model, the device and the time of loading."""
    states = f" (recurrent states {info.state_bytes / 1e9:.2f} GB)" if info.state_bytes else ""
    _log.info(
        "loaded %s on %s in %.2f s: %s, weights %.2f GB, KV cache %.2f GB%s, contexts of %d tokens",
        info.model,
        info.device,
        info.load_s,
        info.dtype,
        info.weight_bytes / 1e9,
        info.kv_cache_bytes / 1e9,
        states,
        info.max_model_len,
    )


def describe_model(engine: Engine, load_s: float) -> ModelInfo:
    """Describe the model that an engine runs; `load_s` is the time of loading in seconds."""
    compiled = engine.compiled
    opened = compiled.open_device
    executor = engine.runner.executor
    parameters = [type for name, type in compiled.parameter_types.items() if name not in compiled.computed]
    names = [resolution.chosen.name for resolution in compiled.step.resolutions if resolution.chosen]
    fallbacks = compiled.step.fallbacks
    placement = f"{len(names)} steps on {opened.device}" + (
        f", NumPy reference for {', '.join(fallbacks)}" if fallbacks else ""
    )
    if compiled.parallel is not None:
        placement += f", rank 0 of {compiled.parallel.share.size}"
    if opened.numa is not None:
        placement += f", {opened.numa}"
    return ModelInfo(
        model=title_of(compiled.source.path),
        architecture=compiled.architecture,
        device=str(opened.device),
        device_reason=opened.selection.reason,
        dtype=compiled.dtype.label,
        num_threads=opened.num_threads,
        max_model_len=compiled.max_model_len,
        num_kv_blocks=compiled.num_kv_blocks,
        block_size=compiled.cache_spec.block_size,
        num_parameters=sum(prod(dim for dim in type.shape if isinstance(dim, int)) for type in parameters),
        weight_bytes=engine.runner.constants.nbytes,
        kv_cache_bytes=engine.runner.kv_cache_bytes,
        arena_bytes=executor.arena_bytes,
        load_s=load_s,
        placement=placement,
        num_native_breaks=executor.executable.num_native_breaks,
        weight_formats=tuple(use.name for use in format_uses(compiled)),
        ignored_options=ignored_options(engine.scheduler.policy),
        adapters=tuple(compiled.config.adapters or ()),
        state_bytes=compiled.cache_spec.num_slots * compiled.cache_spec.bytes_per_slot,
        has_context_shift=engine.context_shift is not None,
        is_embedding_model=_is_embedding_model(compiled),
    )


def _is_embedding_model(compiled: CompiledModel) -> bool:
    try:
        return not compiled.generates or compiled.source.pooling() is not None
    except ConfigError:  # the error of a request for an embedding says what is wrong
        return True
