"""Multi-head latent attention (MLA; DeepSeek-V2, 2024, arXiv:2405.04434) over a paged cache of latent vectors.

Shapes: T tokens, D hidden_size, H heads, L kv_lora_rank, R qk_rope_head_dim, N qk_nope_head_dim, V v_head_dim, A
q_lora_rank; Q = H · (N + R), C = N + R of queries or L + R of keys, K = L + R.
"""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.cache.layers import Latent
from aethermind.checkpoint.expert_stacks import HeadSlice
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

__all__ = ["LatentAttention", "split_latent_projections"]


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Writes the latent attention of a decoder's layers, for `DecoderVariant.attention`.

    Attention has the absorbed form in prefill as well as in decode, so that a token's result does not depend on how its
    text was divided into steps: queries are multiplied by the projection from latent vectors to keys, and the outputs
    of attention by the projection from latent vectors to values.

    Attributes:
        q_lora_rank: the rank of the projection to queries; 0 for a projection of full rank.
        scale: the factor of attention scores.
        is_interleaved: whether rotated pairs are neighbours (2i, 2i + 1), as in the published models.
        names: the names of layers' attention, with `{layer}` for the number of the layer.
    """

    config: DecoderConfig
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    scale: float
    is_interleaved: bool = True
    names: str = "model.layers.{layer}.self_attn"

    @property
    def cache(self) -> Latent:
        """What a layer caches."""
        return Latent(self.kv_lora_rank, self.qk_rope_head_dim)

    def __call__(
        self, builder: GraphBuilder, x_TD: Value, rope_table_TR: Value | None, inputs: StepInputs, layer: int
    ) -> Value:
        """Write the step's latent vectors and rotated keys to the cache, then attend to it: [T, D].

        Weights: `{name}.q_proj.weight` [H · (N + R), D], or `q_a_proj` [A, D], `q_a_layernorm` [A] and `q_b_proj` [H ·
        (N + R), A]; `kv_a_proj_with_mqa` [L + R, D], `kv_a_layernorm` [L]; `k_b_proj` [H · L, N] and `v_b_proj` [H · V,
        L], slices of the checkpoint's `kv_b_proj` (see `split_latent_projections`); `o_proj` [D, H · V].
        """
        prefix, hidden, heads = self.names.format(layer=layer), self.config.hidden_size, self.config.num_attention_heads
        rank, nope, rope_dim = self.kv_lora_rank, self.qk_nope_head_dim, self.qk_rope_head_dim
        kv_a_KD = builder.parameter(f"{prefix}.kv_a_proj_with_mqa.weight", (rank + rope_dim, hidden))
        kv_norm_L = builder.parameter(f"{prefix}.kv_a_layernorm.weight", (rank,))
        k_b_KN = builder.parameter(f"{prefix}.k_b_proj.weight", (heads * rank, nope))
        v_b_VL = builder.parameter(f"{prefix}.v_b_proj.weight", (heads * self.v_head_dim, rank))
        o_DV = builder.parameter(f"{prefix}.o_proj.weight", (hidden, heads * self.v_head_dim))
        queries_TQ = self._queries(builder, x_TD, prefix)
        with builder.scope(prefix):
            q_THC = builder.op("split_heads", queries_TQ, num_heads=heads)
            q_nope_THN = builder.op("slice_last", q_THC, size=nope)
            q_rope_THR = self._rotated(
                builder, builder.op("slice_last", q_THC, begin=nope, size=rope_dim), rope_table_TR
            )
            q_latent_THL = builder.op("linear_per_head", q_nope_THN, k_b_KN, num_heads=heads)
            kv_TK = builder.op("linear", x_TD, kv_a_KD)
            latent_TL = builder.op("slice_last", kv_TK, size=rank)
            latent_TL = builder.op("rms_norm", latent_TL, kv_norm_L, eps=self.config.rms_norm_eps)
            k_rope_TR = builder.op("slice_last", kv_TK, begin=rank, size=rope_dim)
            k_rope_T1R = self._rotated(builder, builder.op("split_heads", k_rope_TR, num_heads=1), rope_table_TR)
            k_T1C = builder.op("concat_last", builder.op("split_heads", latent_TL, num_heads=1), k_rope_T1R)
            tables = inputs.tables_of(layer)
            cache = builder.latest(inputs.caches[layer]["k_cache"])
            cache = builder.op("latent_cache_write", k_T1C, tables.slot_mapping, cache)
            attended_THL = builder.op(
                "mla_attention",
                builder.op("concat_last", q_latent_THL, q_rope_THR),
                cache,
                inputs.cu_seqlens_q,
                inputs.seqlens_k,
                tables.block_tables,
                value_dim=rank,
                scale=self.scale,
            )
            attended_THV = builder.op("linear_per_head", attended_THL, v_b_VL, num_heads=heads)
            out_TD: Value = builder.op("linear", builder.op("merge_heads", attended_THV), o_DV)
        return out_TD

    def _queries(self, builder: GraphBuilder, x_TD: Value, prefix: str) -> Value:
        hidden, rank = self.config.hidden_size, self.q_lora_rank
        width = self.config.num_attention_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        out_TQ: Value
        if not rank:
            weight = builder.parameter(f"{prefix}.q_proj.weight", (width, hidden))
            with builder.scope(f"{prefix}.q_proj"):
                out_TQ = builder.op("linear", x_TD, weight)
            return out_TQ
        down = builder.parameter(f"{prefix}.q_a_proj.weight", (rank, hidden))
        norm = builder.parameter(f"{prefix}.q_a_layernorm.weight", (rank,))
        up = builder.parameter(f"{prefix}.q_b_proj.weight", (width, rank))
        with builder.scope(f"{prefix}.q_b_proj"):
            inner = builder.op("rms_norm", builder.op("linear", x_TD, down), norm, eps=self.config.rms_norm_eps)
            out_TQ = builder.op("linear", inner, up)
        return out_TQ

    def _rotated(self, builder: GraphBuilder, rows: Value, rope_table_TR: Value | None) -> Value:
        if rope_table_TR is None:
            return rows
        out: Value = builder.op("rope", rows, rope_table_TR, interleaved=self.is_interleaved)
        return out


def split_latent_projections(attention: LatentAttention) -> dict[str, HeadSlice]:
    """Return slices of the layers' `kv_b_proj` [H · (N + V), L] by the graph's names, for `StackedTensors`.

    They are `k_b_proj` [H · L, N], which is transposed for each head, and `v_b_proj` [H · V, L].
    """
    heads, nope = attention.config.num_attention_heads, attention.qk_nope_head_dim
    slices: dict[str, HeadSlice] = {}
    for layer in range(attention.config.num_hidden_layers):
        prefix = attention.names.format(layer=layer)
        stored = f"{prefix}.kv_b_proj.weight"
        slices[f"{prefix}.k_b_proj.weight"] = HeadSlice(stored, heads, end=nope, is_transposed=True)
        slices[f"{prefix}.v_b_proj.weight"] = HeadSlice(stored, heads, begin=nope)
    return slices
