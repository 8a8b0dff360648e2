"""A small model with recurrent layers, and what it computes for a whole text in float64.

Its recurrent layers have the simplest state there is, a sum that decays; their operator is one of a package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.end_to_end.models import copy_demo

from aethermind import Runtime
from aethermind.cache.stores.kv_store import KVStore
from aethermind.engine.engine import Engine
from aethermind.engine.loading.model_weights import open_weights
from aethermind.engine.parts import EngineParts
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, Hybrid, LayerCache, Paged, Recurrent, StepInputs, read_decoder_config
from aethermind.model.blocks import cached_attention, embedding, lm_head
from aethermind.ops import catalog
from aethermind.ops.operator import Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["LAYERS", "Array", "OpenRecurrent", "expected_logits", "recurrent_models", "weights_of"]

HEADS, HEAD_DIM, WIDTH, EPS, DECAY = 2, 8, 16, 1e-6, 0.75
STATE = Recurrent((("sum_state", (WIDTH,)),))
PAGED = Paged(1, HEAD_DIM, HEAD_DIM)
LAYERS: Mapping[str, tuple[LayerCache, ...]] = {
    "recurrent": (STATE, STATE),
    "hybrid": (STATE, PAGED, Hybrid(PAGED, STATE)),
}
Array = npt.NDArray[np.float64]
OpenRecurrent = Callable[..., Engine]


def _update(inputs: Sequence[Any], outputs: Sequence[Any], *, decay: float) -> None:
    x, cuts, lengths, slots, state = inputs
    for sequence, slot in enumerate(slots):
        begin, end = cuts[sequence : sequence + 2]
        if begin == end:
            continue
        total = np.zeros_like(state[slot]) if lengths[sequence] == end - begin else state[slot].copy()
        for token in range(begin, end):
            total = total * decay + x[token]
            outputs[0][token] = total
        outputs[1][slot] = total


def _reference(*inputs: Any, decay: float) -> tuple[Any, Any]:
    outputs = np.zeros_like(inputs[0]), inputs[-1].copy()
    _update(inputs, outputs, decay=decay)
    return outputs


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    tables = [np.array(table, np.int32) for table in ((0, 2, 3), (2, 9), (1, 2))]
    yield Sample("two", (rng.normal(size=(3, 4)), *tables, rng.normal(size=(3, 4))))


DECAYING_SUM = Operator(
    schema=OperatorSchema.parse(
        """decaying_sum(x: F[T, C], cu_seqlens_q: i32[S+1], seqlens_k: i32[S], state_slots: i32[S], state: f32[N, C];
        decay: float) -> (out: F[T, C], state_out: f32[N, C] = state)"""
    ),
    summary="For each token of a sequence, state = decay * state + x, and the row of out is the state.",
    reference=_reference,
    update=_update,
    samples=_samples,
)


@dataclass(frozen=True, slots=True)
class RecurrentModel:
    """A stack of layers of these kinds."""

    config: DecoderConfig
    layers: tuple[LayerCache, ...]

    def cache_layout(self) -> tuple[LayerCache, ...]:
        return self.layers

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        x_TD = embedding(builder, inputs, self.config, "model.embed_tokens.weight")
        for layer, entry in enumerate(self.layers):
            norm = builder.parameter(f"model.layers.{layer}.norm.weight", (WIDTH,))
            normed = builder.op("rms_norm", x_TD, norm, eps=EPS)

            def linear(name: str, x: Value, rows: int = WIDTH, layer: int = layer) -> Value:
                weight = builder.parameter(f"model.layers.{layer}.{name}.weight", (rows, WIDTH))
                value: Value = builder.op("linear", x, weight)
                return value

            if not isinstance(entry, Paged):
                assert inputs.state_slots is not None
                state = builder.latest(inputs.caches[layer]["sum_state"])
                tables = (inputs.cu_seqlens_q, inputs.seqlens_k, inputs.state_slots)
                total, _ = builder.op("decaying_sum", linear("u", normed), *tables, state, decay=DECAY)
                x_TD = builder.op("add", x_TD, linear("o", total))
            if not isinstance(entry, Recurrent):
                q, k, v = (
                    builder.op("split_heads", linear(name, normed, heads * HEAD_DIM), num_heads=heads)
                    for name, heads in (("q", HEADS), ("k", 1), ("v", 1))
                )
                mixed = cached_attention(builder, q, k, v, inputs, layer, scale=HEAD_DIM**-0.5)
                x_TD = builder.op("add", x_TD, linear("a", builder.op("merge_heads", mixed)))
        builder.mark("hidden_states", rows := builder.op("gather_rows", x_TD, inputs.logits_rows))
        return lm_head(builder, rows, self.config, "lm_head.weight")


def expected_logits(kind: str, weights: Mapping[str, Array], token_ids: Sequence[int]) -> Array:
    """The logits of every position of a text."""
    x = weights["model.embed_tokens.weight"][list(token_ids)]
    for layer, entry in enumerate(LAYERS[kind]):
        of = {name.split(".")[3]: each for name, each in weights.items() if name.startswith(f"model.layers.{layer}.")}
        normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * of["norm"]
        if not isinstance(entry, Paged):
            distance = np.arange(len(x))[:, None] - np.arange(len(x))
            weight = np.where(distance >= 0, DECAY ** np.maximum(distance, 0), 0)
            x = x + weight @ (normed @ of["u"].T) @ of["o"].T
        if not isinstance(entry, Recurrent):
            q = (normed @ of["q"].T).reshape(len(x), HEADS, HEAD_DIM)
            scores = np.einsum("qhc,kc->hqk", q, normed @ of["k"].T) * HEAD_DIM**-0.5
            scores[:, np.triu(np.ones((len(x), len(x)), bool), 1)] = -np.inf
            probabilities = np.exp(scores - scores.max(-1, keepdims=True))
            probabilities /= probabilities.sum(-1, keepdims=True)
            x = x + np.einsum("hqk,kc->qhc", probabilities, normed @ of["v"].T).reshape(len(x), -1) @ of["a"].T
    return x @ weights["lm_head.weight"].T


def weights_of(engine: Engine) -> dict[str, Array]:
    """The random weights of the model, by name."""
    compiled = engine.compiled
    stored = open_weights(compiled)
    return {name: np.asarray(stored.array(name)).astype(np.float64) for name in compiled.parameter_types}


def recurrent_models(monkeypatch: pytest.MonkeyPatch, folder: Path) -> OpenRecurrent:
    """A function that opens a model of one kind under the architecture of the demo model, perhaps with a KV store or
    with a draft model, which is named by its kind; all states begin as NaN.
    """
    fields = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "head_dim": HEAD_DIM, "num_key_value_heads": 1}
    directories = {
        kind: copy_demo(
            folder / kind,
            {**fields, "num_hidden_layers": len(layers), "tie_word_embeddings": False, "vocab_size": 512},
        )
        for kind, layers in LAYERS.items()
    }
    operators = (*catalog.load(), DECAYING_SUM)
    monkeypatch.setattr(catalog, "load", lambda: operators)
    runtime = Runtime.boot()
    architecture = runtime.architectures.get(runtime.open_source(directories["hybrid"]).config()["architectures"][0])

    def create(_: Any, raw: Mapping[str, Any]) -> RecurrentModel:
        config = read_decoder_config(raw, defaults={})
        layers = next(layers for layers in LAYERS.values() if len(layers) == config.num_hidden_layers)
        return RecurrentModel(config, layers)

    monkeypatch.setattr(type(architecture), "create", create)

    def opened(kind: str, store: KVStore | None = None, **options: Any) -> Engine:
        if store is not None:
            options["kv_store"] = "host:1MiB"
        if "draft_model" in options:
            options["draft_model"] = str(directories[options["draft_model"]])
        given = {"device": "cpu", "dtype": "float32", "load_format": "dummy", "max_model_len": 128, "fallback": "allow"}
        parts = EngineParts.of(runtime, directories[kind], **{**given, **options})
        if store is not None:
            parts = replace(parts, open_kv_store=lambda: store)
        engine = Engine(parts, parts.compiled.source.tokenizer())
        backend = engine.compiled.open_device.backend
        for tensor in engine.runner.kv_memory.state_tensors.values():
            backend.transfer.fill(tensor, 0xFF)
        return engine

    return opened
