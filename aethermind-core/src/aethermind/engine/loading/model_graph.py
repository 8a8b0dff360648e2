"""The graphs that one engine step can run: the model, then what is wanted of it.

Most steps run the plain one, which ends in sampled tokens. The others exist for steps in which some request asks for
more, so that the rest does not pay: *adjusted* ones change logits and report log probabilities, *masked* ones choose
among the tokens of a bitmask, some take embeddings, and some add what requests' adapters do (see `adapters`). *Scores*
are the log probabilities of given tokens, *hidden states* what the last layer leaves. The *sampler* alone takes logits
that the host has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from aethermind.engine.loading.key_shift import write_key_shift
from aethermind.errors import ConfigError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.model.architecture import CausalLM, TextEncoder
from aethermind.model.step_inputs import StepInputs, declare_step_inputs
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import OperatorRegistry
from aethermind.sampling.params import MAX_LOGPROBS

if TYPE_CHECKING:
    from aethermind.cache.spec import KVCacheSpec

__all__ = ["GraphKey", "LOGPROB_OUTPUTS", "Part", "ROW_INPUTS", "StepGraphs"]

ROW_INPUTS = ("temperature", "top_k", "top_p", "min_p", "uniform")
LOGPROB_OUTPUTS = ("logprob", "rank", "top_ids", "top_logprobs")


class Part(Enum):
    """Where a graph begins and ends."""

    STEP = "step"
    """From tokens to tokens: outputs token_ids i32[R], logits f32[R, V], LOGPROB_OUTPUTS if adjusted.

    The logits are those of the model, or, because a mask changes them in place, what it leaves of them.
    """
    SAMPLER = "sampler"
    """From the input `logits` f32[R, V] on."""
    SCORES = "scores"
    """From tokens to LOGPROB_OUTPUTS of the input `target_ids` i32[R]."""
    KEY_SHIFT = "key_shift"
    """From blocks to the same blocks with their keys turned, see `key_shift`."""
    HIDDEN_STATES = "hidden_states"
    """From tokens to the output `hidden_states` F[R, hidden_size], which the projection to the vocabulary takes."""


class GraphKey(NamedTuple):
    """What some steps need and most do not."""

    is_adjusted: bool = False
    has_mask: bool = False
    has_embeddings: bool = False
    part: Part = Part.STEP
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

    def build(self, key: GraphKey = GraphKey()) -> GraphBuilder:  # noqa: B008 - a constant
        """Write one; ConfigError when the model has no place for what the key asks for."""
        prefix = "".join(
            word for word, is_there in (("adjusted_", key.is_adjusted), ("masked_", key.has_mask)) if is_there
        )
        builder = GraphBuilder(prefix + key.part.value, self.operators, self.dtype)
        if isinstance(self.model, TextEncoder):
            self._write_encoder(builder, self.model)
            return builder
        if key.part is Part.KEY_SHIFT:
            write_key_shift(builder, self.model.config.rope, self.max_model_len, self.cache, self.num_blocks)
            return builder
        if key.part is Part.SAMPLER:
            vocab_size = self.model.config.vocab_size
            logits = builder.input("logits", DType.FLOAT32, (SymDim("R"), vocab_size))
        else:
            logits = self._write_model(builder, self.model, key.has_embeddings)
        if key.part is Part.HIDDEN_STATES:
            hidden_states = builder.marked("hidden_states")
            if hidden_states is None:
                raise ConfigError("This model's graph does not say which values are its hidden states.")
            builder.output("hidden_states", hidden_states)
        elif key.part is Part.SCORES:
            _report_logprobs(builder, logits, builder.input("target_ids", DType.INT32, (SymDim("R"),)))
        else:
            self._write_sampler(builder, logits, key)
        return builder

    def _declare_inputs(self, builder: GraphBuilder, has_embeddings: bool = False) -> StepInputs:
        return declare_step_inputs(
            builder,
            num_layers=self.cache.num_layers,
            num_kv_heads=self.cache.num_key_value_heads,
            head_dim=self.cache.head_dim,
            num_blocks=self.num_blocks,
            block_size=self.cache.block_size,
            kv_dtype=DType.parse(self.cache.dtype_name),
            hidden_size=self.model.config.hidden_size,
            has_embeddings=has_embeddings,
        )

    def _write_encoder(self, builder: GraphBuilder, model: TextEncoder) -> None:
        inputs = self._declare_inputs(builder)
        builder.output("hidden_states", model.encode(builder, inputs, self.max_model_len))

    def _write_model(self, builder: GraphBuilder, model: CausalLM, has_embeddings: bool) -> Value:
        inputs = self._declare_inputs(builder, has_embeddings)
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
            chosen_from = _adjust(builder, logits) if key.is_adjusted else logits
            if key.has_mask:
                num_words = (self.model.config.vocab_size + 31) // 32
                mask = builder.input("token_mask", DType.INT32, (rows, num_words))
                chosen_from = builder.op("mask_tokens", chosen_from, mask)
            token_ids = builder.op("sample_tokens", chosen_from, *row_inputs)
            builder.output("token_ids", token_ids)
            builder.output("logits", chosen_from if key.has_mask else logits)
            if key.is_adjusted:
                _report_logprobs(builder, logits, token_ids)


def _adjust(builder: GraphBuilder, logits: Value) -> Value:
    rows = SymDim("R")
    held_back = builder.input("held_back_tokens", DType.INT32, (SymDim("Y"),))
    cu_held_back = builder.input("cu_held_back", DType.INT32, (rows + 1,))
    seen = builder.input("seen_tokens", DType.INT32, (SymDim("X"),))
    cu_seen = builder.input("cu_seen", DType.INT32, (rows + 1,))
    penalty = builder.input("penalty", DType.FLOAT32, (rows,))
    biased = builder.input("biased_tokens", DType.INT32, (SymDim("Z"),))
    cu_biased = builder.input("cu_biased", DType.INT32, (rows + 1,))
    bias = builder.input("bias", DType.FLOAT32, (SymDim("Z"),))
    penalised = builder.op("repetition_penalty", logits, seen, cu_seen, penalty)
    moved = builder.op("bias_tokens", penalised, biased, cu_biased, bias)
    allowed: Value = builder.op("suppress_tokens", moved, held_back, cu_held_back)
    return allowed


def _report_logprobs(builder: GraphBuilder, logits: Value, token_ids: Value) -> None:
    values = builder.op("token_logprobs", logits, token_ids, k=MAX_LOGPROBS)
    for name, value in zip(LOGPROB_OUTPUTS, values, strict=True):
        builder.output(name, value)
