"""Bytes and operations counted from a plan equal those computed from the model's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aethermind import Runtime
from aethermind.cli.bench.workload import Workload
from aethermind.engine.loader import PlannedModel, plan_model

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, WINDOW = 24, 40, 3, 6, 2, 8, 50, 5

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
}


@pytest.fixture(scope="module")
def planned(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> PlannedModel:
    directory: Path = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return plan_model(runtime, directory, device="numpy", load_format="dummy")


@pytest.fixture(scope="module")
def workload(planned: PlannedModel) -> Workload:
    return Workload(planned.compiled.plan, planned.operators)


ATTENTION_WEIGHTS = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS)
MLP_WEIGHTS = 3 * HIDDEN * INTERMEDIATE


def test_weight_bytes_are_all_but_the_embedding(workload: Workload) -> None:
    biases = HEAD_DIM * (HEADS + 2 * KV_HEADS)
    norms = 2 * HIDDEN
    rope_table = HEAD_DIM // 2
    numbers = LAYERS * (ATTENTION_WEIGHTS + biases + MLP_WEIGHTS + norms) + HIDDEN + VOCAB * HIDDEN + rope_table
    assert workload.weight_bytes == 4 * numbers


@pytest.mark.parametrize("context", [1, 4, 5, 17])
def test_kv_bytes_respect_the_window(workload: Workload, context: int) -> None:
    visible = 2 * context + min(context, WINDOW)
    assert workload.kv_bytes(context) == visible * 2 * KV_HEADS * HEAD_DIM * 4


@pytest.mark.parametrize("num_tokens", [1, 5, 12])
def test_prefill_flops(workload: Workload, num_tokens: int) -> None:
    """The last feed-forward network and the head see one row, everything else every token."""
    every_row = LAYERS * ATTENTION_WEIGHTS + (LAYERS - 1) * MLP_WEIGHTS
    one_row = MLP_WEIGHTS + VOCAB * HIDDEN
    pairs = sum(2 * k + min(k, WINDOW) for k in range(1, num_tokens + 1))
    assert workload.prefill_flops(num_tokens) == 2 * (num_tokens * every_row + one_row) + 4 * HEADS * HEAD_DIM * pairs


def test_a_tied_head_is_read_once(runtime: Runtime, tmp_path: Path, workload: Workload) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    tied = plan_model(runtime, tmp_path, device="numpy", load_format="dummy")
    assert Workload(tied.compiled.plan, tied.operators).weight_bytes == workload.weight_bytes
