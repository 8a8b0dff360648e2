"""Models whose layers keep different things: any number of heads in each, and layers that share another's cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.end_to_end.models import copy_demo

from aethermind import LLM, SamplingParams
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_weights import open_weights
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.text_pass import text_logits
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, LayerCache, Paged, Shared, StepInputs, Window, read_decoder_config
from aethermind.model.blocks import cached_attention, embedding, lm_head
from aethermind.runtime import Runtime

HEADS, HEAD_DIM, WIDTH, EPS = 4, 8, 32, 1e-6
LAYERS: tuple[LayerCache, ...] = (
    Paged(2, HEAD_DIM, HEAD_DIM),
    Window(1, HEAD_DIM, HEAD_DIM, 7),
    Shared(0),
    Paged(4, HEAD_DIM, HEAD_DIM),
    Shared(1),
)
WINDOWS = (0, 7, 0, 0, 7)
HEADS_OF_RANK = {0: 1, 1: 1, 3: 2}
"""Key-value heads that one of two ranks keeps; a single head is in both."""
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mixed:
    """A stack of attention layers, each with a cache of its own kind."""

    config: DecoderConfig

    def cache_layout(self) -> tuple[LayerCache, ...]:
        return LAYERS

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        x_TD = embedding(builder, inputs, self.config, "model.embed_tokens.weight")
        for layer, entry in enumerate(LAYERS):
            norm = builder.parameter(f"model.layers.{layer}.norm.weight", (WIDTH,))
            normed = builder.op("rms_norm", x_TD, norm, eps=EPS)

            def heads(name: str, count: int, layer: int = layer, normed: Value = normed) -> Value:
                weight = builder.parameter(f"model.layers.{layer}.{name}.weight", (count * HEAD_DIM, WIDTH))
                value: Value = builder.op("split_heads", builder.op("linear", normed, weight), num_heads=count)
                return value

            keys, values = (
                (None, None) if isinstance(entry, Shared) else (heads(name, entry.num_kv_heads) for name in ("k", "v"))
            )
            mixed = cached_attention(
                builder, heads("q", HEADS), keys, values, inputs, layer, scale=HEAD_DIM**-0.5, window=WINDOWS[layer]
            )
            out = builder.parameter(f"model.layers.{layer}.o.weight", (WIDTH, HEADS * HEAD_DIM))
            x_TD = builder.op("add", x_TD, builder.op("linear", builder.op("merge_heads", mixed), out))
        rows = builder.op("gather_rows", x_TD, inputs.logits_rows)
        return lm_head(builder, rows, self.config, "lm_head.weight")


def reference(weights: Mapping[str, Array], token_ids: list[int]) -> Array:
    """The logits of every position, in float64."""
    x = weights["model.embed_tokens.weight"][token_ids]
    position = np.arange(len(token_ids))
    written: dict[int, tuple[Array, Array]] = {}
    for layer, entry in enumerate(LAYERS):
        of = {name: weights[f"model.layers.{layer}.{name}.weight"] for name in ("norm", "q", "o")}
        normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * of["norm"]
        if isinstance(entry, Shared):
            keys, values = written[entry.layer]
        else:
            keys, values = written[layer] = tuple(
                (normed @ weights[f"model.layers.{layer}.{name}.weight"].T).reshape(len(x), -1, HEAD_DIM)
                for name in "kv"
            )
        q = (normed @ of["q"].T).reshape(len(x), HEADS, HEAD_DIM)
        keys, values = (np.repeat(array, HEADS // array.shape[1], axis=1) for array in (keys, values))
        scores = np.einsum("qhc,khc->hqk", q, keys) * HEAD_DIM**-0.5
        distance = position[:, None] - position
        scores[:, (distance < 0) | ((WINDOWS[layer] > 0) & (distance >= WINDOWS[layer]))] = -np.inf
        probabilities = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khc->qhc", probabilities, values).reshape(len(x), -1) @ of["o"].T
    return x @ weights["lm_head.weight"].T


@pytest.fixture
def open_mixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., LLM]:
    """Open a model of these layers with random weights, under the architecture of the demo model."""
    fields = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": len(LAYERS),
    }
    model = copy_demo(tmp_path / "mixed", {**fields, "num_key_value_heads": 2, "tie_word_embeddings": False})
    runtime = Runtime.boot()
    architecture = runtime.architectures.get(runtime.open_source(model).config()["architectures"][0])
    monkeypatch.setattr(
        type(architecture), "create", lambda _, raw: Mixed(read_decoder_config(raw, defaults={})), raising=True
    )

    def opened(**options: Any) -> LLM:
        given = {"device": "cpu", "dtype": "float32", "load_format": "dummy", "max_model_len": 128, **options}
        return LLM(str(model), **given)

    return opened


def weights_of(llm: LLM) -> dict[str, Array]:
    compiled = llm.engine.compiled
    stored = open_weights(compiled)
    return {name: np.asarray(stored.array(name)).astype(np.float64) for name in compiled.parameter_types}


PROMPTS = [[5, 9, 300, 41] * 3, [7] * 23, list(range(40, 61)), [11, 12]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def tokens_of(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_logits_equal_those_of_dense_attention(open_mixed: Callable[..., LLM], device: str) -> None:
    llm = open_mixed(device=device, max_num_seqs=64, max_num_batched_tokens=64)
    text = np.random.default_rng(3).integers(0, 400, 50).tolist()
    wanted = reference(weights_of(llm), text)
    np.testing.assert_allclose(text_logits(llm.engine, text), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_the_cache_has_the_bytes_of_its_layers(open_mixed: Callable[..., LLM]) -> None:
    llm = open_mixed(num_kv_blocks=8, block_size=16)
    num_heads = sum(entry.num_kv_heads for entry in LAYERS if not isinstance(entry, Shared))
    assert llm.info.kv_cache_bytes == 8 * 16 * num_heads * 2 * HEAD_DIM * 4
    assert sorted(llm.engine.runner.kv_memory.tensors) == [
        f"{name}.{layer}" for name in ("k_cache", "v_cache") for layer in (0, 1, 3)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 5},
        {"num_kv_blocks": 14, "block_size": 4, "enable_prefix_caching": False},
        {"num_kv_blocks": 14, "block_size": 4, "swap_space": 0.01},
        {"speculative_method": "prompt_lookup", "num_speculative_tokens": 3},
        {"block_size": 1},
    ],
    ids=["chunks", "recomputed", "swapped", "speculation", "cells"],
)
def test_tokens_equal_those_of_each_prompt_alone(open_mixed: Callable[..., LLM], options: dict[str, Any]) -> None:
    alone = open_mixed()
    expected = [tokens_of(alone, [prompt])[0] for prompt in PROMPTS]
    llm = open_mixed(**options)
    assert tokens_of(llm) == expected
    assert tokens_of(llm) == expected, "with prefixes in the cache"
    if "num_kv_blocks" in options:
        assert llm.engine.num_preemptions > 0


def test_ranks_have_their_heads_of_each_layer(open_mixed: Callable[..., LLM]) -> None:
    llm = open_mixed()
    model = llm.engine.compiled.source.path
    compiled = compile_model(
        Runtime.boot(), model, device="numpy", dtype="float32", load_format="dummy", tensor_parallel_size=2, rank=1
    )
    heads = {state.name: state.type.shape[1] for state in compiled.step.graph.states}
    compiled.open_device.backend.close()
    assert heads == {
        f"{name}.{layer}": count for name in ("k_cache", "v_cache") for layer, count in HEADS_OF_RANK.items()
    }


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_stored_blocks_are_reused(open_mixed: Callable[..., LLM], tmp_path: Path, kv_cache_dtype: str) -> None:
    options = {"kv_store": f"disk:{tmp_path / 'kv'}", "block_size": 4, "kv_cache_dtype": kv_cache_dtype}
    first = open_mixed(**options)
    expected = tokens_of(first)
    first.close()
    second = open_mixed(**options)
    assert tokens_of(second) == expected
    stats = EngineStats.of(second.engine).kv_store
    assert stats is not None
    assert stats.num_hits >= 5 + 5  # the blocks of two long prompts
