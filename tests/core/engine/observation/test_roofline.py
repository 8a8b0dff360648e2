"""The least that a step must do, counted from its plan, equals what the model's configuration says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aethermind import Runtime
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.observation.roofline import StepShape, Work, calls_of, min_seconds, work_of
from aethermind.hal.backend import MeasuredLimits

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
def compiled(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    directory: Path = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return compile_model(runtime, directory, device="numpy", load_format="dummy")


ATTENTION_WEIGHTS = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS)
MLP_WEIGHTS = 3 * HIDDEN * INTERMEDIATE
BIASES = HEAD_DIM * (HEADS + 2 * KV_HEADS)
NORMS = 2 * HIDDEN
ROPE_FREQUENCIES = HEAD_DIM // 2
STEP_WEIGHTS = LAYERS * (ATTENTION_WEIGHTS + BIASES + MLP_WEIGHTS + NORMS) + HIDDEN + VOCAB * HIDDEN + ROPE_FREQUENCIES
"""Values that every step with logits reads: all but the embedding table."""


def shape_of(compiled: CompiledModel, num_rows: int, *sequences: tuple[int, int]) -> StepShape:
    sizes = {"T": sum(count for count, _ in sequences), "S": len(sequences), "R": num_rows}
    return StepShape(tuple(sizes.get(name, 1) for name in compiled.step.plan.symbols), sequences, is_decode=False)


def works(compiled: CompiledModel, shape: StepShape) -> dict[str, list[Work]]:
    """The work of a step's calls by operator."""
    plan, operators = compiled.step.plan, compiled.operators
    found: dict[str, list[Work]] = {}
    for step, call in zip(plan.steps, calls_of(plan, operators, shape), strict=True):
        found.setdefault(step.kernel.operator, []).append(work_of(operators[step.kernel.operator], step, call))
    return found


def memory_bytes(compiled: CompiledModel, shape: StepShape) -> int:
    return sum(work.memory_bytes for found in works(compiled, shape).values() for work in found)


@pytest.mark.parametrize("context", [1, 4, 5, 17])
def test_a_decode_step_reads_weights_keys_and_values_once(compiled: CompiledModel, context: int) -> None:
    visible = 2 * context + min(context, WINDOW)
    embedding_row = HIDDEN
    numbers = STEP_WEIGHTS + embedding_row + visible * 2 * KV_HEADS * HEAD_DIM
    assert memory_bytes(compiled, shape_of(compiled, 1, (1, context))) == 4 * numbers


def test_sequences_share_weights_but_no_keys(compiled: CompiledModel) -> None:
    one = memory_bytes(compiled, shape_of(compiled, 1, (1, 9)))
    two = memory_bytes(compiled, shape_of(compiled, 2, (1, 9), (1, 9)))
    keys_and_values = (2 * 9 + WINDOW) * 2 * KV_HEADS * HEAD_DIM
    assert two - one == 4 * (HIDDEN + keys_and_values)


@pytest.mark.parametrize("num_tokens", [1, 5, 12])
def test_operations_of_a_prompt(compiled: CompiledModel, num_tokens: int) -> None:
    """The last feed-forward network and the head see one row, everything else every token."""
    every_row = LAYERS * ATTENTION_WEIGHTS + (LAYERS - 1) * MLP_WEIGHTS
    one_row = MLP_WEIGHTS + VOCAB * HIDDEN
    pairs = sum(2 * k + min(k, WINDOW) for k in range(1, num_tokens + 1))
    found = works(compiled, shape_of(compiled, 1, (num_tokens, num_tokens)))
    products = {"linear", "lm_head", "paged_attention", "gate_up_silu", "qkv_rope_cache_write"} & found.keys()
    flops = sum(work.flops for name in products for work in found[name])
    assert flops == 2 * (num_tokens * every_row + one_row) + 4 * HEADS * HEAD_DIM * pairs


def test_a_chunk_without_logits_leaves_the_head_alone(compiled: CompiledModel) -> None:
    (head,) = works(compiled, shape_of(compiled, 0, (4, 4)))["lm_head"]
    assert (head.memory_bytes, head.flops) == (0, 0)


def test_a_tied_head_is_read_once(runtime: Runtime, tmp_path: Path, compiled: CompiledModel) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    tied = compile_model(runtime, tmp_path, device="numpy", load_format="dummy")
    assert memory_bytes(tied, shape_of(tied, 1, (1, 9))) == memory_bytes(compiled, shape_of(compiled, 1, (1, 9)))


def test_a_step_takes_the_longer_of_both_at_every_call(compiled: CompiledModel) -> None:
    shape = shape_of(compiled, 1, (3, 3))
    flat = [work for found in works(compiled, shape).values() for work in found]
    plan, operators = compiled.step.plan, compiled.operators
    limits = MeasuredLimits(1e9, {"float32": 4e9})
    least = sum(max(work.memory_bytes / 1e9, work.flops / 4e9) for work in flat)
    assert min_seconds(plan, operators, [shape, shape], limits) == pytest.approx(2 * least)
    assert least > max(sum(work.memory_bytes for work in flat) / 1e9, sum(work.flops for work in flat) / 4e9)
    assert min_seconds(plan, operators, [shape], MeasuredLimits(1e9, {"int8": 1.0})) is None
    assert min_seconds(plan, operators, [shape], None) is None


def test_quantised_weights_are_bounded_by_the_arithmetic_of_their_kernel(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "dtype": "bfloat16"}))
    quantized = compile_model(
        runtime, tmp_path, device="cpu", load_format="dummy", quantization="int8", lm_head_quantization="dense"
    )
    shape = shape_of(quantized, 1, (1, 1))
    found = works(quantized, shape)
    multiplied = {step.kernel.operator: step.kernel.arithmetic for step in quantized.step.plan.steps}
    expected = multiplied["gate_up_silu"] or quantized.dtype
    assert {work.arithmetic for work in found["gate_up_silu"]} == {expected}
    assert {work.arithmetic for work in found["lm_head"]} == {quantized.dtype}
    blocks = -(-HIDDEN // 32)
    assert found["gate_up_silu"][0].memory_bytes == 2 * INTERMEDIATE * (HIDDEN + 2 * blocks)
