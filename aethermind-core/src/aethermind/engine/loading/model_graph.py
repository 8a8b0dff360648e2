"""The graphs that an engine step can run: the model's network, followed by sampling or another output.

Most steps run the plain graph, whose outputs are sampled tokens. A variant of it runs only in steps with a request that
needs it, so that other steps have no additional cost: *adjusted* graphs apply penalties and biases to the logits and
output log probabilities, *masked* graphs sample among the tokens of a bitmask, some take embeddings as inputs, and some
add LoRA adapters (see `adapters`).

Other kinds of graphs (`GraphKind`) compute whole texts: *scores* are the log probabilities of given tokens, *hidden
states* the output of the last layer. The *sampler* samples from logits that the host has changed. The *key shift*
rotates cached keys (K-shift).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from aethermind.cache.layers import has_latent
from aethermind.cache.positions import BlockShift
from aethermind.cache.spec import KVCacheSpec
from aethermind.engine.config import EngineConfig
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.ir import Graph, Node, Value
from aethermind.hal.dtype import DType
from aethermind.model.architecture import CausalLM, TextEncoder
from aethermind.model.config import DecoderConfig, frequencies_name
from aethermind.model.mtp import MTPModule
from aethermind.model.rope import RopeConfig, inverse_frequencies
from aethermind.model.step_inputs import StepInputs, declare_caches, declare_step_inputs
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import OperatorRegistry
from aethermind.sampling.params import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_TOKEN_IDS
from aethermind.text.tokenizer import MAX_END_TOKENS

__all__ = [
    "GraphKey",
    "GraphKind",
    "LOGPROB_OUTPUTS",
    "ROW_INPUTS",
    "StepGraphs",
    "apply_rope_shift",
    "check_context_shift",
    "max_symbols",
    "reads_positions",
    "write_key_shift",
]

ROW_INPUTS = ("temperature", "top_k", "top_p", "min_p", "uniform")
"""The inputs of the sampler, one value for each logits row; `uniform` is a random number in [0, 1)."""
LOGPROB_OUTPUTS = ("logprob", "rank", "top_ids", "top_logprobs")
"""Log probability and rank of the token of each row, [R], and the most likely tokens of each row, [R, MAX_LOGPROBS]."""


class GraphKind(Enum):
    """The kind of a graph, by its inputs and outputs."""

    STEP = "step"
    """From tokens to sampled tokens: outputs token_ids i32[R], logits f32[R, V], and LOGPROB_OUTPUTS if adjusted.

    A token mask changes the logits in place.
    """
    SAMPLER = "sampler"
    """From the input `logits` f32[R, V] to sampled tokens."""
    SCORES = "scores"
    """From tokens to the LOGPROB_OUTPUTS of the input `target_ids` i32[R]."""
    KEY_SHIFT = "key_shift"
    """Rotation of the keys in KV blocks to new positions, see `apply_rope_shift`."""
    HIDDEN_STATES = "hidden_states"
    """From tokens to the output `hidden_states` F[R, hidden_size], the input of the output projection."""


class GraphKey(NamedTuple):
    """Identifies a graph: its kind, and which variant of it."""

    is_adjusted: bool = False
    has_mask: bool = False
    has_embeddings: bool = False
    kind: GraphKind = GraphKind.STEP
    has_adapters: bool = False


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """Writes the graphs of one model for one KV cache."""

    model: CausalLM | TextEncoder
    operators: OperatorRegistry
    cache: KVCacheSpec
    num_blocks: int
    max_model_len: int
    dtype: DType
    outputs_hidden_states: bool = False
    """Whether graphs of steps have the output `hidden_states`, which an MTP module reads or returns."""
    embedding_dtype: DType | None = None
    lm_head_dtype: DType | None = None
    """The dtypes in which embeddings are looked up and logits computed; None for `dtype`."""

    def build(self, key: GraphKey = GraphKey()) -> GraphBuilder:  # noqa: B008 - a constant
        """Write the graph of a key; ConfigError if the model does not support it."""
        prefix = "".join(name for name, is_set in (("adjusted_", key.is_adjusted), ("masked_", key.has_mask)) if is_set)
        dtypes = {"embedding_dtype": self.embedding_dtype, "lm_head_dtype": self.lm_head_dtype}
        builder = GraphBuilder(prefix + key.kind.value, self.operators, self.dtype, **dtypes)
        if isinstance(self.model, TextEncoder):
            self._write_encoder(builder, self.model)
            return builder
        if key.kind is GraphKind.KEY_SHIFT:
            write_key_shift(builder, self.model.config, self.max_model_len, self.cache, self.num_blocks)
            return builder
        if key.kind is GraphKind.SAMPLER:
            vocab_size = self.model.config.vocab_size
            logits = builder.input("logits", DType.FLOAT32, (SymDim("R"), vocab_size))
        else:
            logits = self._write_model(builder, self.model, key)
        if key.kind is GraphKind.HIDDEN_STATES:
            hidden_states = builder.marked("hidden_states")
            if hidden_states is None:
                raise ConfigError("This model's graph does not say which values are its hidden states.")
            builder.output("hidden_states", hidden_states)
        elif key.kind is GraphKind.SCORES:
            _output_logprobs(builder, logits, builder.input("target_ids", DType.INT32, (SymDim("R"),)))
        else:
            self._write_sampler(builder, logits, key)
            if self.outputs_hidden_states and key.kind is GraphKind.STEP:
                self._output_hidden_states(builder)
        return builder

    def _declare_inputs(
        self, builder: GraphBuilder, has_embeddings: bool = False, *, needs_all_rows: bool = False
    ) -> StepInputs:
        return declare_step_inputs(
            builder,
            self.cache,
            self.num_blocks,
            hidden_size=self.model.config.hidden_size,
            has_embeddings=has_embeddings,
            has_hidden_states=isinstance(self.model, MTPModule),
            needs_all_rows=needs_all_rows,
        )

    def _output_hidden_states(self, builder: GraphBuilder) -> None:
        hidden_states = builder.marked("hidden_states" if isinstance(self.model, MTPModule) else "all_hidden_states")
        if hidden_states is None:
            raise ConfigError("This model's graph does not say which values an MTP module reads.")
        builder.output("hidden_states", hidden_states)

    def _write_encoder(self, builder: GraphBuilder, model: TextEncoder) -> None:
        inputs = self._declare_inputs(builder)
        builder.output("hidden_states", model.encode(builder, inputs, self.max_model_len))

    def _write_model(self, builder: GraphBuilder, model: CausalLM, key: GraphKey) -> Value:
        needs_all_rows = self.outputs_hidden_states and key.kind is GraphKind.STEP and not isinstance(model, MTPModule)
        inputs = self._declare_inputs(builder, key.has_embeddings, needs_all_rows=needs_all_rows)
        logits: Value = model.build(builder, inputs, self.max_model_len)
        if inputs.embeddings is not None and not builder.is_used(inputs.embeddings.values):
            raise ConfigError("This model takes token ids only: its graph has no place for embeddings.")
        return logits

    def _write_sampler(self, builder: GraphBuilder, logits: Value, key: GraphKey) -> None:
        rows = SymDim("R")
        row_inputs = [
            builder.input(name, DType.INT32 if name == "top_k" else DType.FLOAT32, (rows,)) for name in ROW_INPUTS
        ]
        with builder.scope("sampler"):
            sampled_from = _adjust(builder, logits) if key.is_adjusted else logits
            if key.has_mask:
                num_words = (self.model.config.vocab_size + 31) // 32
                mask = builder.input("token_mask", DType.INT32, (rows, num_words))
                sampled_from = builder.op("mask_tokens", sampled_from, mask)
            token_ids = builder.op("sample_tokens", sampled_from, *row_inputs)
            builder.output("token_ids", token_ids)
            builder.output("logits", sampled_from if key.has_mask else logits)
            if key.is_adjusted:
                _output_logprobs(builder, logits, token_ids)


def _adjust(builder: GraphBuilder, logits: Value) -> Value:
    """Write penalties, biases and the suppression of tokens; each is a ragged list of tokens for each logits row.

    The tokens of row *r* are those from index `cu_…[r]` to `cu_…[r + 1]` of a list.
    """
    rows = SymDim("R")
    held_back = builder.input("held_back_tokens", DType.INT32, (SymDim("Y"),))
    cu_held_back = builder.input("cu_held_back", DType.INT32, (rows + 1,))
    seen = builder.input("seen_tokens", DType.INT32, (SymDim("X"),))
    cu_seen = builder.input("cu_seen", DType.INT32, (rows + 1,))
    penalty = builder.input("penalty", DType.FLOAT32, (rows,))
    biased = builder.input("biased_tokens", DType.INT32, (SymDim("Z"),))
    cu_biased = builder.input("cu_biased", DType.INT32, (rows + 1,))
    bias = builder.input("bias", DType.FLOAT32, (SymDim("Z"),))
    penalized = builder.op("repetition_penalty", logits, seen, cu_seen, penalty)
    biased_logits = builder.op("bias_tokens", penalized, biased, cu_biased, bias)
    allowed: Value = builder.op("suppress_tokens", biased_logits, held_back, cu_held_back)
    return allowed


def _output_logprobs(builder: GraphBuilder, logits: Value, token_ids: Value) -> None:
    values = builder.op("token_logprobs", logits, token_ids, k=MAX_LOGPROBS)
    for name, value in zip(LOGPROB_OUTPUTS, values, strict=True):
        builder.output(name, value)


def check_context_shift(graph: Graph, cache: KVCacheSpec) -> None:
    """Raise InvalidArgumentError if cached keys of a model cannot be moved to other positions.

    `graph` is that of a step before lowering. Keys can be moved if positions are only the angles of rotary embeddings
    of half-split pairs, because rotations add up, or if keys do not depend on positions (ALiBi).
    """
    others = {node.operator for node in graph.nodes if _reads_positions(node)} - {"rope_table"}
    reason = ""
    if cache.is_recurrent:
        reason = "recurrent layers keep one state of all tokens, from which none can be dropped"
    elif has_latent(cache.layers):
        reason = "cached latent vectors cannot be rotated to other positions"
    elif not cache.has_attention or "hidden_states" in graph.outputs:
        reason = "it generates nothing"
    elif others:
        reason = f"positions are computed by {', '.join(sorted(others))}, so keys contain more than a rotation"
    elif any(node.operator == "rope" and node.attributes.get("interleaved") for node in graph.nodes):
        reason = "its rotary embeddings interleave pairs, which cached keys are not rotated by"
    if reason:
        raise InvalidArgumentError(
            f"A context shift is wrong for this model: {reason}. Leave context_shift out.", param="context_shift"
        )


def reads_positions(graph: Graph) -> bool:
    """Whether the graph of a step depends on the positions of tokens, by rotary embeddings or otherwise."""
    return any(map(_reads_positions, graph.nodes))


def _reads_positions(node: Node) -> bool:
    return any(value is not None and value.name == "positions" for value in node.inputs)


def write_key_shift(
    builder: GraphBuilder, config: DecoderConfig, max_model_len: int, cache: KVCacheSpec, num_blocks: int
) -> None:
    """Write the graph of `apply_rope_shift`: inputs shifted_blocks i32[B], shifted_tokens i32[B], shift_deltas i64[B].

    The graph has no outputs. Keys are rotated by the angles of `shift_deltas`, with the frequencies of each layer. The
    factor by which YaRN multiplies cosines and sines is 1 here, because keys contain it already. Layers without
    position embeddings keep their keys.
    """
    count = SymDim("B")
    blocks = builder.input("shifted_blocks", DType.INT32, (count,))
    num_tokens = builder.input("shifted_tokens", DType.INT32, (count,))
    deltas = builder.input("shift_deltas", DType.INT64, (count,))
    tables: dict[RopeConfig, Value] = {}
    seen: set[Value] = set()
    for layer, tensors in enumerate(declare_caches(builder, cache, num_blocks)):
        keys, scales, rope = tensors.get("k_cache"), tensors.get("k_scale"), config.rope_of(layer)
        if keys is None or keys in seen or rope is None:
            continue
        seen.add(keys)
        if rope not in tables:
            inv_freq, _ = inverse_frequencies(rope, max_model_len)
            frequencies = builder.constant(frequencies_name(config, rope), inv_freq)
            tables[rope] = builder.op("rope_table", deltas, frequencies, scale=1.0)
        table = tables[rope]
        if scales is not None:
            builder.op("shift_keys_quantized", keys, blocks, num_tokens, table, scales)
        else:
            builder.op("shift_keys", keys, blocks, num_tokens, table)


def apply_rope_shift(executor: PlanExecutor, shifts: Sequence[BlockShift]) -> None:
    """Enqueue runs of the key shift graph: rotate cached keys to the new positions of their tokens (K-shift).

    The cache decides which blocks to shift, and by how much (`cache.shift`). A run takes at most as
    many shifts as the graph's inputs hold.
    """
    inputs = executor.host_inputs
    blocks, num_tokens, deltas = (inputs[name] for name in ("shifted_blocks", "shifted_tokens", "shift_deltas"))
    for begin in range(0, len(shifts), len(blocks)):
        batch = shifts[begin : begin + len(blocks)]
        executor.synchronize()  # the previous run has read its inputs
        blocks[: len(batch)] = [shift.block for shift in batch]
        num_tokens[: len(batch)] = [shift.num_tokens for shift in batch]
        deltas[: len(batch)] = [shift.delta for shift in batch]
        executor.run(tuple(len(batch) if name == "B" else 0 for name in executor.plan.symbols))


_MAX_DRAFTS = 128
"""Maximum number of draft tokens that a step verifies. Memory for their logits rows is reserved."""


def max_symbols(
    config: EngineConfig, max_model_len: int, cache: KVCacheSpec, vocab_size: int, num_eos: int
) -> dict[str, int]:
    """Return the sizes of the symbolic dims in the largest step of an engine, for which memory is planned.

    T tokens, S sequences, R logits rows, B columns of the block tables, E embeddings; X, Y and Z are the lengths of the
    adjusted sampler's lists of seen, suppressed and biased tokens.
    """
    sequences = rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    if config.speculative_method is not None:
        rows += min(sequences * config.num_speculative_tokens, _MAX_DRAFTS)
    longest = vocab_size if config.context_shift else max_model_len
    return {
        "T": config.max_num_batched_tokens,
        "S": sequences,
        "R": rows,
        "B": cache.table_width(max_model_len),
        "X": rows * min(longest, vocab_size),
        "Y": rows * min(MAX_STOP_TOKEN_IDS + num_eos + MAX_END_TOKENS + 2 * MAX_BAD_WORDS, vocab_size),
        "Z": rows * min(MAX_LOGIT_BIAS + longest, vocab_size),
        "E": config.max_num_batched_tokens,
    }
