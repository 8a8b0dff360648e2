"""How large a model's KV cache is: what a token takes, how many blocks fit, and how long a context they hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aethermind.cache.spec import KVCacheSpec
from aethermind.engine.config import EngineConfig
from aethermind.errors import InvalidArgumentError, OutOfMemoryError
from aethermind.hal.dtype import DType
from aethermind.hal.host_memory import host_memory_bytes
from aethermind.model.config import DecoderConfig
from aethermind.ops.schema import CODE_DTYPES
from aethermind.runtime import OpenDevice

__all__ = ["KVPlan", "for_whole_texts", "plan_kv"]


@dataclass(frozen=True, slots=True)
class KVPlan:
    """A cache before there is memory for it; `num_swap_blocks` are in host memory.

    Where `has_most_blocks` there are as many blocks as requests could ever use, and what fits of them is to be found
    out (see `device_memory`).
    """

    spec: KVCacheSpec
    num_blocks: int
    num_swap_blocks: int
    max_model_len: int
    has_most_blocks: bool = False


def plan_kv(
    config: EngineConfig, dtype: DType, decoder: DecoderConfig, opened: OpenDevice, *, is_encoder: bool = False
) -> KVPlan:
    """Plan the cache of a model that computes in `dtype`.

    Raises InvalidArgumentError for a dtype or a context that the model cannot have, OutOfMemoryError for what does not
    fit in the memory that there is.
    """
    spec = _nothing(config) if is_encoder else _choose_spec(config, dtype, decoder)
    wanted_len = _wanted_len(config, decoder)
    num_swap_blocks = _num_swap_blocks(config, spec)
    if config.num_kv_blocks is None and _tells_free_memory(opened):
        return KVPlan(spec, _most_num_blocks(config, spec, wanted_len), num_swap_blocks, wanted_len, True)
    num_blocks = config.num_kv_blocks or _default_num_blocks(config, spec, wanted_len, opened)
    _check_room(num_blocks, spec, opened)
    return KVPlan(spec, num_blocks, num_swap_blocks, min(wanted_len, num_blocks * config.block_size))


def for_whole_texts(config: EngineConfig, encoder: DecoderConfig) -> EngineConfig:
    """The same options with room for one text of full length in a step: its tokens see each other both ways."""
    length = _wanted_len(config, encoder)
    num_tokens = max(config.max_num_batched_tokens, length)
    return replace(config, max_num_batched_tokens=num_tokens, num_kv_blocks=1, block_size=length)


def _nothing(config: EngineConfig) -> KVCacheSpec:
    """Encoders keep nothing: their texts are counted like others, at two bytes a token."""
    return KVCacheSpec(1, 1, 1, "int8", config.block_size)


def _choose_spec(config: EngineConfig, dtype: DType, decoder: DecoderConfig) -> KVCacheSpec:
    """Keys and values as they are computed, or as codes with a float32 scale for each head of a token."""
    stored = dtype if config.kv_cache_dtype == "auto" else DType.parse(config.kv_cache_dtype)
    if stored not in (dtype, *CODE_DTYPES):
        raise InvalidArgumentError(
            f"A KV cache in {stored} needs a model that computes in {stored}, and this one computes in {dtype}. "
            f"Pass dtype='{stored}', or auto, int8 or fp8 as kv_cache_dtype."
        )
    scale_bits = 32 if stored in CODE_DTYPES else 0
    sizes = (decoder.num_hidden_layers, decoder.num_key_value_heads, decoder.head_dim)
    return KVCacheSpec(*sizes, stored.label, config.block_size, scale_bits)


def _wanted_len(config: EngineConfig, decoder: DecoderConfig) -> int:
    """The context asked for; longer than max_position_embeddings only when asked, and as far as rope scaling goes."""
    limit = max(decoder.max_position_embeddings, decoder.rope.max_positions)
    if config.max_model_len is None:
        return decoder.max_position_embeddings
    if config.max_model_len > limit:
        raise InvalidArgumentError(
            f"max_model_len {config.max_model_len} is more than the {limit} positions that the model is made for. "
            "Lower it, or set rope scaling in config.json."
        )
    return config.max_model_len


def _tells_free_memory(opened: OpenDevice) -> bool:
    """Whether the device has memory of its own, and says how much of it is free."""
    return not opened.backend.capabilities.is_host_accessible and opened.backend.free_memory() is not None


def _most_num_blocks(config: EngineConfig, cache: KVCacheSpec, max_model_len: int) -> int:
    """Room for every sequence of a step at full length; of few, what is kept of others has room beside them."""
    num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    return max(num_seqs * cache.num_blocks_for(max_model_len), _usual_num_blocks(config, cache, max_model_len))


def _usual_num_blocks(config: EngineConfig, cache: KVCacheSpec, max_model_len: int) -> int:
    """Room for one sequence of full length and for a batch of medium ones."""
    batch_tokens = min(config.max_num_seqs, 16) * min(max_model_len, 2048)
    return cache.num_blocks_for(max_model_len) + cache.num_blocks_for(batch_tokens)


def _default_num_blocks(config: EngineConfig, cache: KVCacheSpec, max_model_len: int, opened: OpenDevice) -> int:
    """The usual number, within a third of the device's memory: the host has other uses for its own."""
    wanted = _usual_num_blocks(config, cache, max_model_len)
    total = opened.backend.devices.properties(opened.device.index).total_memory_bytes
    affordable = total // 3 // cache.bytes_per_block if total else wanted
    return max(1, min(wanted, affordable))


def _check_room(num_blocks: int, cache: KVCacheSpec, opened: OpenDevice) -> None:
    total = opened.backend.devices.properties(opened.device.index).total_memory_bytes
    wanted = num_blocks * cache.bytes_per_block
    if total and wanted > total:
        raise OutOfMemoryError(
            f"{num_blocks} KV blocks of {cache.block_size} tokens take {wanted} bytes, and {opened.device} has {total} "
            "in all. Lower num_kv_blocks or max_model_len."
        )


def _num_swap_blocks(config: EngineConfig, cache: KVCacheSpec) -> int:
    wanted, total = config.swap_space * 2**30, host_memory_bytes()
    if total and wanted > total:
        raise OutOfMemoryError(
            f"A swap space of {config.swap_space} GiB does not fit: the host has {total / 2**30:.1f} GiB in all. "
            "Lower swap_space."
        )
    num_blocks = int(wanted // cache.bytes_per_block)
    if wanted and not num_blocks:
        raise InvalidArgumentError(
            f"A swap space of {config.swap_space} GiB holds no block of {cache.bytes_per_block} bytes. "
            "Raise swap_space, or set it to 0 for none."
        )
    return num_blocks
