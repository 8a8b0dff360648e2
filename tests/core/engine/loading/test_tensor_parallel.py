"""Tensor parallelism: ranks with a part of a model each compute what one device computes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.recurrent_model import recurrent_models

from aethermind import Runtime
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_graph import GraphKey, GraphKind
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.loading.tensor_parallel import PartialTensors
from aethermind.errors import AetherMindError, ConfigError, InvalidArgumentError
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.tensor_parallel import Share, WeightShard
from aethermind.hal.communicator import SharedMemoryCommunicator, shared_file
from aethermind.hal.dtype import DType
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import FP8, fp8_in_blocks, parse_format

RUNTIME = Runtime.boot()
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "head_dim": 8,
    "tie_word_embeddings": False,
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_head": 8,
    "n_layer": 2,
    "n_positions": 64,
    "vocab_size": 101,
}
DELTA = {
    **LLAMA,
    "architectures": ["Qwen3_5ForCausalLM"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 4,
    "full_attention_interval": 2,
}
MAMBA = {
    "architectures": ["Mamba2ForCausalLM"],
    "hidden_size": 32,
    "num_heads": 8,
    "head_dim": 8,
    "expand": 2,
    "state_size": 16,
    "n_groups": 1,
    "num_hidden_layers": 2,
    "vocab_size": 101,
    "tie_word_embeddings": False,
}
FALCON = {
    **LLAMA,
    "architectures": ["FalconH1ForCausalLM"],
    "mamba_n_heads": 8,
    "mamba_d_ssm": 64,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 2.0],
    "key_multiplier": 0.5,
}
RECURRENT = {"delta net": DELTA, "mamba": MAMBA, "mamba of four groups": {**MAMBA, "n_groups": 4}, "falcon": FALCON}
FAMILIES = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "gpt2": GPT2}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def write_config(config: dict[str, Any]) -> Path:
        directory = tmp_path / f"{config['architectures'][0]}"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    return write_config


def plans(model: Path, size: int, **options: Any) -> list[CompiledModel]:
    """All ranks of a model with random weights."""
    given = {"device": "numpy", "dtype": "float32", "load_format": "dummy", "num_kv_blocks": 8, **options}
    return [compile_model(RUNTIME, model, rank=rank, tensor_parallel_size=size, **given) for rank in range(size)]


class Rank:
    """One rank, which runs a prompt of seven tokens, and then one more."""

    def __init__(self, compiled: CompiledModel, key: GraphKey) -> None:
        plan = (compiled.step if key == compiled.key else compiled.compile(key)).plan
        self.memory = KVMemory.of(compiled)
        self.constants = open_constants(compiled)
        self.constants.load(plan)
        opened = compiled.open_device
        self.executor = PlanExecutor(plan, opened.backend, opened.device, self.constants, self.memory.tensors)

    def run(self, tokens: list[int], start: int) -> Any:
        count = len(tokens)
        given = {
            "token_ids": tokens,
            "positions": range(start, start + count),
            "slot_mapping": range(16 + start, 16 + start + count),
            "cu_seqlens_q": (0, count),
            "seqlens_k": (start + count,),
            "block_tables": (1,),
            "logits_rows": range(count),
            "state_slots": (1,),
            "temperature": [0.0] * count,
        }
        for name, values in given.items():
            if name in self.executor.host_inputs:
                self.executor.host_inputs[name][: len(values)] = values
        sizes = {"T": count, "S": 1, "R": count, "B": 1}
        symbols = tuple(sizes.get(name, 0) for name in self.executor.plan.symbols)
        self.executor.run(symbols)
        self.executor.synchronize()
        outputs = self.executor.plan.outputs
        return {name: self.executor.output(name, symbols).copy() for name in outputs}


def results(compiled: list[CompiledModel], key: GraphKey = GraphKey()) -> Iterator[dict[str, Any]]:  # noqa: B008
    """What rank 0 has after the prompt and after the next token."""
    ranks = [Rank(one, key) for one in compiled]
    descriptor = shared_file(len(compiled))
    for rank, one in enumerate(compiled):
        if one.parallel is not None:
            one.parallel.kernels.connect(SharedMemoryCommunicator(rank, len(compiled), descriptor))
    os.close(descriptor)
    for tokens, start in (([5, 3, 100, 7, 9, 11, 2], 0), ([42], 7)):
        with ThreadPoolExecutor(len(ranks)) as pool:
            runs = [pool.submit(rank.run, tokens, start) for rank in ranks]
            found = [run.result(300) for run in runs]
        assert all(not others for others in found[1:])
        yield found[0]


def assert_alike(model: Path, size: int, key: GraphKey = GraphKey(), **options: Any) -> None:  # noqa: B008
    alone, together = plans(model, 1, **options), plans(model, size, **options)
    for expected, found in zip(results(alone, key), results(together, key), strict=True):
        assert expected.keys() == found.keys()
        for name, values in expected.items():
            if values.dtype == np.float32:
                np.testing.assert_allclose(found[name], values, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_compute_what_one_device_computes(write: Callable[..., Path], family: str, size: int) -> None:
    assert_alike(write(FAMILIES[family]), size)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", RECURRENT)
def test_ranks_divide_recurrent_states_by_heads(write: Callable[..., Path], family: str, size: int) -> None:
    assert_alike(path := write(RECURRENT[family]), size, max_num_seqs=8)
    (alone,), ranks = plans(path, 1), plans(path, size)
    for name, (heads, *_) in alone.cache_spec.state_shapes.items():
        for rank in ranks:
            (state,) = (value for value in rank.step.graph.states if value.name == name)
            if name.startswith("recurrent_state"):
                assert state.type.shape[1] == heads // size
            else:
                assert state.type.shape[-1] < alone.cache_spec.state_shapes[name][-1]


def test_operators_of_packages_keep_whole_states_on_each_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Attention beside them is divided by heads."""
    recurrent_models(monkeypatch, tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "RUNTIME", Runtime.boot())
    options = {"max_num_seqs": 8, "max_model_len": 64, "fallback": "allow"}
    assert_alike(tmp_path / "hybrid", 2, **options)
    (alone,), (part, _) = plans(tmp_path / "hybrid", 1, **options), plans(tmp_path / "hybrid", 2, **options)
    shapes = [{value.name: value.type.shape for value in one.step.graph.states} for one in (alone, part)]
    assert shapes[0]["sum_state.0"] == shapes[1]["sum_state.0"]


def test_a_state_whose_heads_cannot_be_divided_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="number of heads of the state is 8, which 3 ranks cannot share evenly"):
        plans(write(MAMBA), 3)


@pytest.mark.parametrize(("family", "num_kv_heads", "size"), [("llama", 2, 4), ("qwen2", 1, 2), ("qwen3", 4, 8)])
def test_ranks_share_key_heads_if_there_are_fewer(
    write: Callable[..., Path], family: str, num_kv_heads: int, size: int
) -> None:
    model = write(FAMILIES[family] | {"num_key_value_heads": num_kv_heads})
    assert_alike(model, size, **({"kv_cache_dtype": "int8"} if family == "qwen2" else {}))
    (alone,), together = plans(model, 1), plans(model, size)
    assert [KVMemory.of(rank).nbytes for rank in together] == [KVMemory.of(alone).nbytes // num_kv_heads] * size


def test_a_rank_has_the_key_heads_of_its_query_heads() -> None:
    assert [Share(rank, 2).heads(4) for rank in range(2)] == [(0, 2), (2, 4)]
    assert [Share(rank, 4).heads(2) for rank in range(4)] == [(0, 1), (0, 1), (1, 2), (1, 2)]


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "fp8"},
        {"quantization": "int8"},
        {"quantization": "int4", "lm_head_quantization": "dense"},
        {"lm_head_dtype": "bfloat16"},
        {"embedding_dtype": "bfloat16", "lm_head_dtype": "float16"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_quantised_caches_and_weights(write: Callable[..., Path], options: dict[str, str]) -> None:
    if options.get("quantization"):  # a part's blocks are those of the whole where they end where it does
        wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
        assert_alike(write(LLAMA | wide), 2, **options)
    else:
        assert_alike(write(LLAMA), 2, **options)


@pytest.mark.parametrize("part", [GraphKind.HIDDEN_STATES, GraphKind.SCORES])
def test_scores_and_hidden_states(write: Callable[..., Path], part: GraphKind) -> None:
    assert_alike(write(QWEN2), 2, GraphKey(kind=part))


def test_each_rank_holds_its_part_of_the_weights(write: Callable[..., Path]) -> None:
    model = write(LLAMA)
    (alone,), together = plans(model, 1), plans(model, 2)

    def held(compiled: CompiledModel) -> int:
        return Rank(compiled, compiled.key).constants.nbytes

    norms = 5 * 48 * 4
    assert all(abs(held(rank) - held(alone) / 2) <= norms + 48 * 4 for rank in together)  # an odd vocabulary
    assert [KVMemory.of(rank).nbytes for rank in together] == [KVMemory.of(alone).nbytes // 2] * 2


def test_ranks_run_collectives_in_the_same_order(write: Callable[..., Path]) -> None:
    names = [
        [step.kernel.operator for step in rank.step.plan.steps if step.kernel.operator.startswith("all_")]
        for rank in plans(write(QWEN2), 4)
    ]
    assert names == [["all_gather_last", *["all_reduce"] * 4, "all_gather_last"]] * 4


def test_indivisible_heads_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"num_kv_heads is 4, which 3 ranks cannot share evenly\. Choose"):
        plans(write(LLAMA), 3)
    with pytest.raises(ConfigError, match="num_heads is 8, which 16 ranks cannot share evenly"):
        plans(write(LLAMA), 16)
    with pytest.raises(ConfigError, match="num_heads is 8, which 16 ranks cannot share evenly"):
        plans(write(QWEN3), 16)


def test_unsupported_combinations_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(InvalidArgumentError, match="tensor_parallel_size should be a positive integer"):
        compile_model(RUNTIME, write(LLAMA), tensor_parallel_size=0)
    with pytest.raises(AetherMindError, match="No kernels for 2 operators on sim: all_gather_last"):
        plans(write(LLAMA), 2, device="sim", fallback="error")


# Parts of weights


class Source:
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def array(self, _: str) -> Any:
        return self.weight


def cut(weight: Any, axis: int, rank: int, size: int) -> Any:
    begin, end = Share(rank, size).part(weight.shape[axis] if hasattr(weight, "shape") else weight.codes.shape[axis])
    part = WeightShard("w", TensorType(DType.FLOAT32, (64, 96)), axis, begin, end)
    return PartialTensors(Source(weight), {"w/part": part}).array("w/part")  # type: ignore[arg-type]


def test_a_part_of_a_mapped_weight_is_a_view() -> None:
    weight = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    assert np.shares_memory(cut(weight, -1, 1, 2), weight)
    joined = np.concatenate([cut(weight, -2, rank, 3) for rank in range(3)])
    np.testing.assert_array_equal(joined, weight)


@pytest.mark.parametrize("name", ["int8", "int4_zp", "int4_offset", "int8_channel"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_parts_of_a_quantised_weight_begin_at_blocks(name: str, axis: int) -> None:
    format = parse_format(name)
    assert format is not None
    weight = format.quantize(np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32))
    parts = [format.dequantize(cut(weight, axis, rank, 3)) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts, axis), format.dequantize(weight))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("axis", [-1, -2])
def test_parts_within_super_blocks_have_one_level_of_scales(size: int, axis: int) -> None:
    """Parts that begin at a super-block, and parts of whole rows, keep their format."""
    format = parse_format("int4_k")
    assert format is not None
    weight = format.quantize(np.random.default_rng(0).normal(size=(48, 768)).astype(np.float32))
    parts = [cut(weight, axis, rank, size) for rank in range(size)]
    is_split = axis == -1 and size == 2
    assert [part.format.name for part in parts] == (["int4_k", "int4_offset"] if is_split else ["int4_k"] * size)
    joined = np.concatenate([part.format.dequantize(part) for part in parts], axis)
    np.testing.assert_allclose(joined, format.dequantize(weight), rtol=0, atol=4e-3 if is_split else 0)


def test_a_part_within_a_block_of_fp8_has_a_scale_for_each_row() -> None:
    format = fp8_in_blocks(64)
    weight = format.quantize(np.random.default_rng(0).normal(size=(8, 384)).astype(np.float32))
    values = format.dequantize(weight)
    whole = [cut(weight, -1, rank, 2) for rank in range(2)]
    assert [part.format for part in whole] == [format] * 2
    np.testing.assert_array_equal(np.concatenate([format.dequantize(part) for part in whole], -1), values)
    parts = [cut(weight, -1, rank, 4) for rank in range(4)]
    assert [part.format for part in parts] == [FP8] * 4
    joined = np.concatenate([FP8.dequantize(part) for part in parts], -1)
    np.testing.assert_allclose(joined, values, rtol=1 / 16, atol=2e-3)


def test_a_part_that_ends_within_a_block_is_refused() -> None:
    format = parse_format("int8")
    assert format is not None
    weight = format.quantize(np.ones((64, 96), np.float32))
    with pytest.raises(InvalidArgumentError, match=r"32 of its values share a scale.*Choose another"):
        cut(weight, -1, 0, 2)
