"""The catalog: one page an operator. `load` imports the pages and with them NumPy; this package does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.ops.operator import Operator

__all__ = ["load"]


def load() -> tuple[Operator, ...]:
    """Every page of core's catalog, in the order in which a model meets the operators."""
    from aethermind.ops.catalog.add import ADD
    from aethermind.ops.catalog.add_rms_norm import ADD_RMS_NORM
    from aethermind.ops.catalog.embedding import EMBEDDING
    from aethermind.ops.catalog.gate_up_silu import GATE_UP_SILU
    from aethermind.ops.catalog.gather_rows import GATHER_ROWS
    from aethermind.ops.catalog.kv_cache_write import KV_CACHE_WRITE
    from aethermind.ops.catalog.linear import LINEAR
    from aethermind.ops.catalog.lm_head import LM_HEAD
    from aethermind.ops.catalog.merge_heads import MERGE_HEADS
    from aethermind.ops.catalog.mlp_swiglu import MLP_SWIGLU
    from aethermind.ops.catalog.mul import MUL
    from aethermind.ops.catalog.paged_attention import PAGED_ATTENTION
    from aethermind.ops.catalog.qkv_rope_cache_write import QKV_ROPE_CACHE_WRITE
    from aethermind.ops.catalog.repetition_penalty import REPETITION_PENALTY
    from aethermind.ops.catalog.rms_norm import RMS_NORM
    from aethermind.ops.catalog.rope import ROPE
    from aethermind.ops.catalog.rope_table import ROPE_TABLE
    from aethermind.ops.catalog.sample_tokens import SAMPLE_TOKENS
    from aethermind.ops.catalog.silu import SILU
    from aethermind.ops.catalog.silu_mul import SILU_MUL
    from aethermind.ops.catalog.split_heads import SPLIT_HEADS
    from aethermind.ops.catalog.suppress_tokens import SUPPRESS_TOKENS
    from aethermind.ops.catalog.token_logprobs import TOKEN_LOGPROBS

    embedded = (EMBEDDING, ROPE_TABLE)
    attention = (
        RMS_NORM,
        LINEAR,
        SPLIT_HEADS,
        ROPE,
        KV_CACHE_WRITE,
        QKV_ROPE_CACHE_WRITE,
        PAGED_ATTENTION,
        MERGE_HEADS,
    )
    feed_forward = (ADD, ADD_RMS_NORM, SILU, MUL, SILU_MUL, GATE_UP_SILU, MLP_SWIGLU)
    sampled = (GATHER_ROWS, LM_HEAD, SUPPRESS_TOKENS, REPETITION_PENALTY, SAMPLE_TOKENS, TOKEN_LOGPROBS)
    return (*embedded, *attention, *feed_forward, *sampled)
