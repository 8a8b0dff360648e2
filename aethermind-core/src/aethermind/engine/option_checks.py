"""Checks of engine options that depend on each other; `EngineConfig` checks each option by itself."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from aethermind.errors import InvalidArgumentError
from aethermind.ops.weight_format import DENSE

if TYPE_CHECKING:
    from aethermind.engine.config import EngineConfig

__all__ = ["SPECULATION_OPTIONS", "check_combinations"]

SPECULATION_OPTIONS = {
    "draft_model": "draft",
    "num_speculative_tokens": "prompt_lookup",
    "prompt_lookup_max": "prompt_lookup",
    "prompt_lookup_min": "prompt_lookup",
}
"""Options without effect unless a speculative method is set, each with a method that uses it."""

_MAX_SPECULATIVE_TOKENS = 32
"""Maximum number of draft tokens of one request in a step."""


def check_combinations(config: EngineConfig) -> None:
    """Raise InvalidArgumentError for options that exclude each other, or of which one needs another."""
    num_adapters = len(config.adapters or ())
    if config.max_loras is not None and num_adapters > config.max_loras:
        raise InvalidArgumentError(
            f"max_loras is {config.max_loras}, and {num_adapters} adapters are given. Raise max_loras.",
            param="max_loras",
        )
    if config.lm_head_dtype is not None and config.lm_head_quantization not in (None, DENSE):
        raise InvalidArgumentError(
            f"lm_head_dtype computes the output projection with dense weights, and lm_head_quantization is "
            f"{config.lm_head_quantization}. Leave one of them out.",
            param="lm_head_dtype",
        )
    _check_stores(config)
    _check_swap_device(config)
    _check_prefill_stream(config)
    if config.device_memory_threshold is not None and config.tensor_parallel_size > 1:
        raise InvalidArgumentError(
            "device_memory_threshold is for one rank. Leave it out, or tensor_parallel_size.",
            param="device_memory_threshold",
        )
    _check_speculation(config)


def _check_stores(config: EngineConfig) -> None:
    if config.session_dir is not None and not config.enable_prefix_caching:
        raise InvalidArgumentError(
            "session_dir needs enable_prefix_caching: the next turn of a session finds it by its beginning.",
            param="session_dir",
        )
    if config.kv_store is None:
        return
    from aethermind.cache.stores.kv_store import StoreAddress

    StoreAddress.parse(config.kv_store)
    if not config.enable_prefix_caching:
        raise InvalidArgumentError("A KV store needs enable_prefix_caching: what it has is found by its beginning.")


def _check_swap_device(config: EngineConfig) -> None:
    if config.swap_device is None:
        return
    if not config.swap_space:
        raise InvalidArgumentError(
            "swap_device is given and swap_space is 0. Say how many GiB of its memory to use as swap_space.",
            param="swap_space",
        )
    if config.tensor_parallel_size > 1:
        raise InvalidArgumentError(
            "swap_device is for one rank, because each rank has a device of its own. Leave it out to swap to host "
            "memory.",
            param="swap_device",
        )


def _check_prefill_stream(config: EngineConfig) -> None:
    for is_combined, option in (
        (config.tensor_parallel_size > 1, "tensor_parallel_size"),
        (config.speculative_method == "mtp", "speculative_method mtp"),
    ):
        if config.prefill_stream and is_combined:
            raise InvalidArgumentError(
                f"prefill_stream cannot be combined with {option}. Leave one of them out.", param="prefill_stream"
            )


def _check_speculation(config: EngineConfig) -> None:
    if (number := config.num_speculative_tokens) > _MAX_SPECULATIVE_TOKENS:
        raise InvalidArgumentError(
            f"num_speculative_tokens should be at most {_MAX_SPECULATIVE_TOKENS}, got {number}.",
            param="num_speculative_tokens",
        )
    if config.prompt_lookup_min > config.prompt_lookup_max:
        raise InvalidArgumentError(
            f"prompt_lookup_min is {config.prompt_lookup_min} but prompt_lookup_max is {config.prompt_lookup_max}; "
            "lower the one or raise the other.",
            param="prompt_lookup_min",
        )
    for option in fields(config):
        is_unused = config.speculative_method is None and option.name in SPECULATION_OPTIONS
        if is_unused and getattr(config, option.name) != option.default:
            raise InvalidArgumentError(
                f"{option.name} is given and speculative_method is not; set that to "
                f"{SPECULATION_OPTIONS[option.name]}, or leave both out."
            )
