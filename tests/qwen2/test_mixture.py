"""Qwen's mixtures of experts in every form of checkpoint: fused, GPTQ, AWQ and GGUF, and how they are refused."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from tests.core.checkpoint.packed_layers import random_layer
from tests.end_to_end.gguf_files import with_stacked_experts, write_gguf
from tests.qwen2.checkpoints import CASES, reference_model
from tests.qwen2.test_gguf import assert_twins

from aethermind import LLM, Runtime, SamplingParams
from aethermind.cli.models import estimate_memory
from aethermind.engine.config import EngineConfig
from aethermind.engine.text_pass import text_logits
from aethermind.errors import CheckpointError, ConfigError
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.transformers_reference import outputs_of

CheckpointOf = Callable[[ModelCase], Path]

BY_NAME = {case.name: case for case in CASES}
ARCH_OF = {"Qwen2MoeForCausalLM": "qwen2moe", "Qwen3MoeForCausalLM": "qwen3moe"}
TEXT = np.random.default_rng(4).integers(0, 131, 24).tolist()
WIDE = ModelCase(
    "qwen3_moe_wide",
    "Qwen3MoeForCausalLM",
    {
        **SMALL,
        "hidden_size": 256,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
        "head_dim": 64,
        "num_hidden_layers": 1,
    },
)


def error_of(path: Path, expected: np.ndarray[Any, Any], runtime: Runtime, device: str = "numpy") -> float:
    """The largest error of a logit as a fraction of its row's largest."""
    with LLM(path, device=device, dtype="float32", max_num_seqs=32, fallback="allow", runtime=runtime) as llm:
        actual = text_logits(llm.engine, TEXT)
    return float((np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())


@pytest.mark.parametrize("name", ["qwen2_moe", "qwen3_moe", "qwen3_moe_all_experts_odd_width"])
def test_a_gguf_file_answers_as_its_directory(
    runtime: Runtime, checkpoint: CheckpointOf, name: str, tmp_path: Path
) -> None:
    directory = checkpoint(BY_NAME[name])
    path = write_gguf(directory, tmp_path / "model.gguf", arch=ARCH_OF[BY_NAME[name].architecture])
    assert_twins("numpy", runtime, directory, path)


def test_old_gguf_files_have_a_tensor_per_expert(runtime: Runtime, checkpoint: CheckpointOf, tmp_path: Path) -> None:
    directory = checkpoint(BY_NAME["qwen3_moe"])

    def split(writer: gguf.GGUFWriter) -> None:
        (tensors,) = writer.tensors
        for name in [name for name in tensors if name.endswith("_exps.weight")]:
            stack = tensors.pop(name).tensor
            for expert, matrix in enumerate(stack):
                writer.add_tensor(name.replace("_exps", f".{expert}"), np.ascontiguousarray(matrix))

    path = write_gguf(directory, tmp_path / "model.gguf", arch="qwen3moe", more=split)
    assert_twins("numpy", runtime, directory, path)


@pytest.mark.parametrize(("type", "tolerance"), [("Q8_0", 1e-5), ("Q4_0", 1e-5), ("Q4_K", 5e-3)])
def test_quantised_experts_of_a_gguf_file(
    runtime: Runtime, checkpoint: CheckpointOf, type: str, tolerance: float, tmp_path: Path
) -> None:
    directory = checkpoint(WIDE)
    names = [f"blk.0.ffn_{name}_exps.weight" for name in ("gate", "up", "down")]
    path = write_gguf(directory, tmp_path / "model.gguf", arch="qwen3moe", quantised=dict.fromkeys(names, type))
    model = copy.deepcopy(reference_model(directory))
    experts, found = model.model.layers[0].mlp.experts, {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name in names:
            found[tensor.name] = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float64)
    gate, up, down = (found[name] for name in names)
    experts.gate_up_proj.data = torch.from_numpy(np.concatenate([gate, up], axis=1))
    experts.down_proj.data = torch.from_numpy(down)
    assert error_of(path, outputs_of(model, TEXT), runtime) < tolerance
    with LLM(path, device="numpy", dtype="float32", fallback="allow", runtime=runtime) as llm:
        formats = llm.engine.compiled.weight_formats
        assert {f"model.layers.0.mlp.experts.{name}_proj.weight" for name in ("gate", "up", "down")} <= set(formats)


def test_fused_experts_are_read_as_those_of_single_tensors(
    runtime: Runtime, checkpoint: CheckpointOf, tmp_path: Path
) -> None:
    original = checkpoint(BY_NAME["qwen2_moe"])
    fused = tmp_path / "fused"
    shutil.copytree(original, fused)
    tensors = with_stacked_experts(safetensors.torch.load_file(fused / "model.safetensors"))
    for layer in range(2):
        base = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (tensors.pop(f"{base}.{name}_proj.weight") for name in ("gate", "up", "down"))
        tensors |= {f"{base}.gate_up_proj": torch.cat([gate, up], dim=1), f"{base}.down_proj": down}
    safetensors.torch.save_file(tensors, fused / "model.safetensors")
    found = []
    for path in (original, fused):
        with LLM(path, device="numpy", runtime=runtime) as llm:
            found.append(text_logits(llm.engine, TEXT))
    np.testing.assert_array_equal(*found)


def test_a_base_model_computes_the_vectors_of_the_whole_one(
    runtime: Runtime, checkpoint: CheckpointOf, tmp_path: Path
) -> None:
    whole, base = checkpoint(BY_NAME["qwen3_moe"]), tmp_path / "base"
    shutil.copytree(whole, base)
    tensors = safetensors.torch.load_file(base / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, base / "model.safetensors")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3MoeModel"]}))
    vectors = []
    for path in (whole, base):
        with LLM(path, device="numpy", runtime=runtime) as llm:
            vectors.append(llm.embed([{"prompt_token_ids": TEXT}])[0])
    np.testing.assert_array_equal(*vectors)


_LINEAR = re.compile(r"model\.layers\.\d+\.(?:self_attn|mlp\.experts\.\d+)\.\w+_proj\.weight")


@pytest.mark.parametrize(
    ("described", "options"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, {}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True}, {"is_symmetric": True}),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, {"method": "awq"}),
    ],
    ids=["gptq", "gptq_symmetric", "awq"],
)
def test_packed_experts(
    runtime: Runtime, checkpoint: CheckpointOf, described: Mapping[str, Any], options: Any, tmp_path: Path
) -> None:
    packed, dense = tmp_path / "packed", tmp_path / "dense"
    for folder in (packed, dense):
        shutil.copytree(checkpoint(WIDE), folder)
    tensors = safetensors.torch.load_file(packed / "model.safetensors")
    values = dict(tensors)
    for seed, name in enumerate(filter(_LINEAR.fullmatch, list(tensors))):
        layer = random_layer(*tensors.pop(name).shape, seed=seed, **options)
        values[name] = torch.from_numpy(np.ascontiguousarray(layer.values)).float()
        tensors |= {name.replace("weight", end): torch.from_numpy(tensor) for end, tensor in layer.tensors.items()}
    safetensors.torch.save_file(tensors, packed / "model.safetensors")
    safetensors.torch.save_file(values, dense / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": dict(described)}))
    assert error_of(packed, outputs_of(reference_model(dense), TEXT), runtime) < 1e-5
    with LLM(packed, device="numpy", dtype="float32", fallback="allow", runtime=runtime) as llm:
        formats = {format.name for format in llm.engine.compiled.weight_formats.values()}
    assert formats == {"int4_g64" if options.get("is_symmetric") else "int4_zp_g64"}


def test_weights_are_quantised_at_load_but_routers_are_not(runtime: Runtime, checkpoint: CheckpointOf) -> None:
    with LLM(checkpoint(WIDE), device="numpy", dtype="float32", quantization="int8", runtime=runtime) as llm:
        formats = llm.engine.compiled.weight_formats
        (answer,) = llm.generate([{"prompt_token_ids": TEXT}], SamplingParams(max_tokens=3, temperature=0))
    assert len(answer.outputs[0].token_ids) == 3
    base = "model.layers.0.mlp"
    assert {f"{base}.experts.{name}_proj.weight" for name in ("gate", "up", "down")} <= set(formats)
    assert f"{base}.gate.weight" not in formats


def test_the_estimate_of_memory_counts_all_experts(runtime: Runtime, checkpoint: CheckpointOf) -> None:
    directory = checkpoint(WIDE)
    config = EngineConfig(device="numpy", dtype="float32", fallback="allow")
    found = estimate_memory(runtime, directory, config)
    assert found["weight_bytes"] >= (directory / "model.safetensors").stat().st_size * 0.99
    assert found["weight_bytes"] >= 3 * 4 * 256 * 256 * 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_experts_per_tok": 7}, r"num_experts_per_tok \(7\) is larger than num_experts \(6\)"),
        ({"num_experts": 0}, "num_experts in config.json should be a positive integer, got 0"),
        ({"moe_intermediate_size": "16"}, "moe_intermediate_size in config.json should be a positive integer"),
        ({"mlp_only_layers": "0"}, "mlp_only_layers in config.json should be a list of layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step in config.json should be a positive integer"),
        ({"norm_topk_prob": 1}, "norm_topk_prob in config.json should be true or false"),
        ({"use_sliding_window": True}, "use_sliding_window is true in config.json"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_field_is_an_error_of_one_sentence(runtime: Runtime, change: dict[str, Any], says: str) -> None:
    architecture = runtime.architectures.get("Qwen2MoeForCausalLM")
    with pytest.raises(ConfigError, match=says):
        architecture.create({**BY_NAME["qwen2_moe"].config, **change})


def test_a_missing_expert_is_named(runtime: Runtime, checkpoint: CheckpointOf, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(BY_NAME["qwen3_moe"]), folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.4.up_proj.weight"]
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.layers\.1\.mlp\.experts\.4\.up_proj\.weight'"):
        LLM(folder, device="numpy", runtime=runtime)
