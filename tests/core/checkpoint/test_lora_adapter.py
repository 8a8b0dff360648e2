"""LoRA adapters as PEFT writes them: their updates, and an error for each way in which one can be invalid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.adapters import write_adapter

from aethermind.checkpoint.lora_adapter import Adapter
from aethermind.errors import AetherMindError, CheckpointError, ConfigError

MODULES = {"model.layers.0.self_attn.q_proj": (6, 4), "model.layers.0.mlp.down_proj": (4, 10)}
WEIGHTS = {f"{name}.weight": shape for name, shape in MODULES.items()}
Q, DOWN = WEIGHTS
A_OF_Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def read(directory: Path) -> Adapter:
    return Adapter.read(directory, WEIGHTS)


def tensors(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = load_file(directory / "adapter_model.safetensors")
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("is_stabilised", "scale"), [(False, 6 / 3), (True, 6 / 3**0.5)])
def test_updates_are_scaled(tmp_path: Path, dtype: Any, is_stabilised: bool, scale: float) -> None:
    write_adapter(tmp_path, MODULES, rank=3, lora_alpha=6, use_rslora=is_stabilised, dtype=dtype)
    adapter, stored = read(tmp_path), tensors(tmp_path)
    assert set(adapter.updates) == set(WEIGHTS)
    for name, (num_outputs, num_inputs) in WEIGHTS.items():
        update, prefix = adapter.updates[name], f"base_model.model.{name.removesuffix('.weight')}"
        assert (update.rank, update.down.shape, update.up.shape) == (3, (3, num_inputs), (3, num_outputs))
        np.testing.assert_array_equal(update.down, stored[f"{prefix}.lora_A.weight"])
        up = stored[f"{prefix}.lora_B.weight"].astype(np.float32).T
        np.testing.assert_array_equal(update.up, up * np.float32(scale))


def test_patterns_give_modules_ranks_and_scales_of_their_own(tmp_path: Path) -> None:
    more = {
        "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight": np.ones((2, 10), np.float32),
        "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight": np.ones((4, 2), np.float32),
    }
    patterns = {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {r"layers\.\d+\.mlp\.down_proj": 5}}
    adapter = read(write_adapter(tmp_path, MODULES, rank=3, lora_alpha=6, tensors=more, **patterns))
    assert (adapter.updates[DOWN].rank, adapter.updates[Q].rank) == (2, 3)
    np.testing.assert_array_equal(adapter.updates[DOWN].up, np.full((2, 4), 2.5))


def test_tensor_names_may_contain_the_adapter_name(tmp_path: Path) -> None:
    wanted = read(write_adapter(tmp_path / "plain", MODULES))
    named = {name.replace(".weight", ".default.weight"): array for name, array in tensors(tmp_path / "plain").items()}
    found = read(write_adapter(tmp_path / "named", {}, tensors=named))
    assert found.digest == wanted.digest
    with pytest.raises(CheckpointError, match="which are the same matrix"):
        read(write_adapter(tmp_path / "both", MODULES, tensors=named))


def test_a_digest_depends_on_the_content_only(tmp_path: Path) -> None:
    first = read(write_adapter(tmp_path / "first", MODULES))
    same = read(write_adapter(tmp_path / "same", MODULES, task_type="CAUSAL_LM"))
    others = [
        read(write_adapter(tmp_path / "seed", MODULES, seed=1)),
        read(write_adapter(tmp_path / "alpha", MODULES, lora_alpha=1)),
        read(write_adapter(tmp_path / "fewer", MODULES, targets=["q_proj"])),
    ]
    assert same.digest == first.digest
    assert len({one.digest for one in [first, *others]}) == 4


@pytest.mark.parametrize(
    "targets",
    ["all-linear", r".*\.(q_proj|down_proj)", ["q_proj", "down_proj"], ["self_attn.q_proj", "down_proj", "lm_head"]],
)
def test_targets_are_lists_expressions_or_all(tmp_path: Path, targets: Any) -> None:
    assert set(read(write_adapter(tmp_path, MODULES, target_modules=targets)).updates) == set(WEIGHTS)


def test_targets_may_leave_out_modules_and_layers(tmp_path: Path) -> None:
    one = write_adapter(
        tmp_path, MODULES, targets=["q_proj"], target_modules="all-linear", exclude_modules=["down_proj"]
    )
    assert set(read(one).updates) == {Q}


REFUSED = [
    ({"use_dora": True}, "DoRA"),
    ({"bias": "lora_only"}, "changes biases (bias is 'lora_only')"),
    ({"lora_bias": True}, "adds biases of its own"),
    ({"layer_replication": [[0, 2], [0, 2]]}, "repeats layers of the model"),
    ({"modules_to_save": ["lm_head"]}, "replaces whole modules"),
    ({"trainable_token_indices": [3]}, "replaces embeddings of tokens"),
    ({"target_parameters": ["experts.w1"]}, "target_parameters is ['experts.w1']"),
    ({"use_qalora": True}, "QALoRA"),
    ({"alora_invocation_tokens": [1]}, "aLoRA"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
    ({"peft_type": "LOHA"}, "peft_type 'LOHA'; only LORA"),
    ({"r": 0}, "r should be a positive integer, got 0"),
    ({"r": True}, "r should be a positive integer, got True"),
    ({"lora_alpha": None}, "lora_alpha should be a number, got None"),
    ({"lora_alpha": float("inf")}, "lora_alpha should be a number, got inf"),
    ({"rank_pattern": {"q_proj": 1.5}}, "rank_pattern['q_proj'] should be a positive integer"),
    ({"alpha_pattern": {"(": 1}}, "which is no regular expression"),
    ({"alpha_pattern": 3}, "alpha_pattern should be an object, got 3"),
    ({"target_modules": None}, "has target_modules None"),
    ({"target_modules": "("}, "is no regular expression"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_unsupported_configurations_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(write_adapter(tmp_path, MODULES, **fields))
    assert message in str(caught.value)


def test_neutral_values_are_accepted(tmp_path: Path) -> None:
    neutral = {"use_dora": False, "modules_to_save": None, "init_lora_weights": "gaussian", "fan_in_fan_out": True}
    assert read(write_adapter(tmp_path, MODULES, lora_dropout=0.1, **neutral)).updates


WRONG: list[tuple[dict[str, Any], str]] = [
    ({A_OF_Q: None}, "lacks model.layers.0.self_attn.q_proj.lora_A, which its configuration promises"),
    ({A_OF_Q: np.zeros((4, 5), np.float32)}, "is [4, 5] instead of [4, 4]"),
    ({A_OF_Q: np.zeros((3, 4), np.float32)}, "is [3, 4] instead of [4, 4]"),
    ({A_OF_Q: np.full((4, 4), np.nan, np.float32)}, "contains NaN or infinity"),
    ({A_OF_Q: np.zeros((4, 4), np.int8)}, "is stored in I8, not in F32, F16, BF16"),
    ({"base_model.model.lm_head.lora_A.weight": np.zeros((4, 4), np.float32)}, "1 tensors that belong to no linear"),
    ({"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((4, 9), np.float32)}, "lora_embedding_A"),
    ({"base_model.model.model.embed_tokens.weight": np.zeros((9, 4), np.float32)}, "embed_tokens.weight"),
]


@pytest.mark.parametrize(("more", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_tensors_have_to_be_those_of_the_model(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(write_adapter(tmp_path, MODULES, tensors=more))
    assert message in str(caught.value)


def test_a_missing_target_module_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.0\.mlp\.down_proj\.lora_A"):
        read(write_adapter(tmp_path, MODULES, targets=["q_proj"], target_modules=["q_proj", "down_proj"]))


def test_missing_and_broken_files_are_errors(tmp_path: Path) -> None:
    def message() -> str:
        with pytest.raises(AetherMindError) as caught:
            read(tmp_path)
        return str(caught.value)

    assert "holds no adapter_config.json" in message()
    write_adapter(tmp_path, MODULES)
    file = tmp_path / "adapter_model.safetensors"
    file.rename(tmp_path / "adapter_model.bin")
    assert "has no adapter_model.safetensors (found adapter_model.bin)" in message()
    file.write_bytes(b"\0" * 20)
    assert "Fetch or write the file again" in message()
    (tmp_path / "adapter_config.json").write_text("[1]")
    assert "should hold an object, not list" in message()
    (tmp_path / "adapter_config.json").write_text("{")
    assert "is not valid JSON" in message()


def test_no_tensor_at_all_is_no_adapter(tmp_path: Path) -> None:
    write_adapter(tmp_path, {}, target_modules=["nothing"])
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == ["nothing"]
    with pytest.raises(CheckpointError, match="lacks every tensor"):
        read(tmp_path)
