"""Files that llama.cpp's converter makes of families whose tensors it rearranges have the logits of the originals."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.gguf_conversions import write_converted
from tests.qwen2.checkpoints import write_checkpoint
from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import Split

from aethermind import LLM, Runtime
from aethermind.engine.text_pass import text_logits
from aethermind.errors import AetherMindError
from aethermind.testing.families import ModelCase
from aethermind.testing.families.transformers_reference import TransformersReference

PACKAGES = ("deepseek", "glm", "mamba", "qwen2", "llama", "phi", "gpt2")
CHANGES = {
    "deepseek_v2_groups": {},
    "deepseek_v2_yarn": {},
    "deepseek_v3": {},
    "glm4_moe": {},
    "glm4_moe_bias_no_qk_norm": {},
    "lfm2": {},
    "qwen3_next": {},
    "qwen3_5_tied": {},
    "qwen3_5_moe": {},
    "falcon_h1": {"head_dim": 8},
    "mamba2": {},
    "olmo3": {},
    "olmo3_yarn": {},
    "cohere2": {},
    "gelu_new": {},
    "phi2": {"intermediate_size": 256},
    "gpt_neox": {},
    "bloom": {},
    "mpt": {},
}
"""Cases of the packages, with changes to what the converter supports."""
TEXT = np.random.default_rng(4).integers(0, 131, 24).tolist()


OLD = ("deepseek_v2_groups", "qwen3_next")
"""Cases of which files of older converters, too, are read."""


def cases() -> list[Any]:
    found = [case for package in PACKAGES for case in import_module(f"aethermind_{package}.conformance").CASES]
    by_name = {case.name: case for case in found}
    changed = {name: replace(by_name[name], config={**by_name[name].config, **CHANGES[name]}) for name in CHANGES}
    return [
        *(pytest.param(case, False, id=name) for name, case in changed.items()),
        *(pytest.param(changed[name], True, id=f"{name}-old") for name in OLD),
    ]


@pytest.mark.parametrize(("case", "is_old"), cases())
def test_logits_are_those_of_the_original(runtime: Runtime, case: ModelCase, is_old: bool, tmp_path: Path) -> None:
    directory = write_checkpoint(case, tmp_path / "original")
    path = write_converted(directory, tmp_path / "model.gguf", is_old=is_old)
    expected = TransformersReference().outputs(case, directory)(TEXT)
    with LLM(path, device="numpy", dtype="float32", max_num_seqs=32, runtime=runtime) as llm:
        found = text_logits(llm.engine, TEXT)
    assert (np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)).max() < 1e-5


QUANTISED = {
    "deepseek_v3": dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"), 32),
    "qwen3_5_tied": {},
    "mamba2": {},
    "bloom": {},
}
"""Cases with sizes that are multiples of a block of Q8_0."""


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_values_are_rearranged_as_others(runtime: Runtime, name: str, tmp_path: Path) -> None:
    """The same values, once quantised and once in F32."""
    (case,) = (case for case, is_old in (param.values for param in cases()) if case.name == name and not is_old)
    case = replace(case, config={**case.config, **QUANTISED[name]})
    directory = write_checkpoint(case, tmp_path / "original")
    logits = []
    for quantised in ("Q8_0", "dequantised"):
        path = write_converted(directory, tmp_path / f"{quantised}.gguf", quantised=quantised)
        with LLM(path, device="numpy", dtype="float32", max_num_seqs=32, runtime=runtime) as llm:
            logits.append(text_logits(llm.engine, TEXT))
            assert bool(llm.engine.compiled.weight_formats) == (quantised == "Q8_0")
    np.testing.assert_allclose(*logits, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "key", "value", "says"),
    [
        ("lfm2", "attention.head_count_kv", None, r"has no lfm2\.attention\.head_count_kv in its metadata"),
        ("lfm2", "attention.head_count_kv", 2, r"metadata under lfm2 that do not describe a model"),
        ("mamba2", "ssm.time_step_rank", 0, r"metadata under mamba2 that do not describe a model"),
        ("qwen3_5_tied", "ssm.group_count", None, r"has no qwen35\.ssm\.group_count in its metadata"),
        ("deepseek_v3", "expert_gating_func", 4, r"deepseek2\.expert_gating_func is 4"),
        ("deepseek_v3", "rope.dimension_count", "x", r"a deepseek2\.rope\.dimension_count that is not one number"),
        ("deepseek_v3", "attention.key_length_mla", "x", r"metadata under deepseek2 that do not describe a model"),
        ("glm4_moe", "nextn_predict_layers", "x", r"glm4moe\.nextn_predict_layers 'x'; that is a number"),
        ("bloom", "attention.head_count", 3, r"attn_qkv.* rows or columns where its metadata say"),
    ],
)
def test_wrong_metadata_are_an_error_of_one_sentence(
    runtime: Runtime, name: str, key: str, value: Any, says: str, tmp_path: Path
) -> None:
    (case,) = (case for case, is_old in (param.values for param in cases()) if case.name == name and not is_old)
    directory = write_checkpoint(case, tmp_path / "original")
    source = runtime.open_source(write_converted(directory, tmp_path / "model.gguf", changed={key: value}))
    with pytest.raises(AetherMindError, match=says):
        _ = source.config(), [source.weights().array(tensor) for tensor in source.names()]


@pytest.mark.parametrize(
    ("family", "pre", "pieces"),
    [
        ("deepseek2", "deepseek-v3", ["Ab", " don", "'t", " ", "123", "4", "漢字", "x", "/\n", " ", " y"]),
        ("deepseek2", "deepseek-llm", ["Ab", " don", "'", "t", " ", "1234", "漢字", "x", "/", "\n", " ", " y"]),
        ("deepseek2", "deepseek-coder", ["Ab", " don", "'", "t", " ", *"1234", "漢字", "x", "/", "\n", " ", " y"]),
        ("deepseek2", "kimi-k2", ["Ab", " don't", " ", "123", "4", "漢字", "x", "/\n", " ", " y"]),
        ("bloom", "bloom", ["Ab", " don't", " 1234漢字x/", "\n ", " y"]),
        ("qwen35", "qwen35", ["Ab", " don", "'t", " ", *"1234", "漢字x", "/\n", " ", " y"]),
    ],
)
def test_text_is_split_as_by_the_tokenizers_of_the_originals(
    runtime: Runtime, family: str, pre: str, pieces: list[str]
) -> None:
    """By hand, from what tokenizer.json of the families says."""
    pattern = runtime.gguf_families.get(family).splits[pre].pattern
    patterns = [pattern] if isinstance(pattern, str) else pattern
    rule = pre_tokenizers.Sequence([Split(Regex(one), "isolated") for one in patterns])
    assert [piece for piece, _ in rule.pre_tokenize_str("Ab don't 1234漢字x/\n  y")] == pieces
