"""DeepSeek's latent attention and gpt-oss's experts in mxfp4 on a GPU against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aethermind import LLM, Runtime

pytest.importorskip("torch", reason="parity is measured against transformers, which needs torch")
pytest.importorskip("transformers", reason="parity is measured against transformers")

import safetensors.torch
import torch
from tests.qwen2.checkpoints import write_checkpoint
from tests.qwen2.sixteen_bits import assert_no_further_from_the_truth

import aethermind_deepseek.conformance
import aethermind_gpt_oss.conformance
from aethermind.engine.text_pass import text_logits
from aethermind.ops.weight_format import MXFP4
from aethermind.testing.families import Bench, Checkpoints, ModelCase
from aethermind.testing.families.checks import checks_of
from aethermind.testing.families.transformers_reference import outputs_of, pretrained

_V2_LITE = aethermind_deepseek.conformance.CASES[0]
PUBLISHED_SIZES = ModelCase(
    "deepseek_published_sizes",
    "DeepseekV2ForCausalLM",
    {**_V2_LITE.config, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
)
"""Its heads are those for which attention uses tensor cores."""
DEEPSEEK = (*aethermind_deepseek.conformance.CASES, PUBLISHED_SIZES)
TEXT = np.random.default_rng(4).integers(0, 131, 40).tolist()

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Each case's model, written when first asked for."""
    return Checkpoints(tmp_path_factory.mktemp)


@pytest.mark.parametrize("case", DEEPSEEK, ids=str)
def test_deepseek_passes_the_conformance_kit(runtime: Runtime, checkpoints: Checkpoints, case: ModelCase) -> None:
    bench = Bench(case, runtime, "cuda", checkpoints)
    for check in checks_of(case, runtime):
        check(bench)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", [_V2_LITE, PUBLISHED_SIZES], ids=str)
def test_sixteen_bits_are_no_further_from_the_truth_than_in_transformers(
    runtime: Runtime, checkpoints: Checkpoints, case: ModelCase, dtype: str
) -> None:
    assert_no_further_from_the_truth(case, checkpoints.directory(case), dtype, "cuda", runtime, most=1.1)


def test_experts_in_mxfp4_compute_what_their_values_do(runtime: Runtime, tmp_path: Path) -> None:
    # Older releases of transformers have this limit in whatever configuration.
    config = {
        **aethermind_gpt_oss.conformance.CASES[0].config,
        "hidden_size": 64,
        "intermediate_size": 64,
        "swiglu_limit": 7.0,
    }
    plain = write_checkpoint(ModelCase("published", "GptOssForCausalLM", config), tmp_path / "plain")
    published = tmp_path / "published"
    shutil.copytree(plain, published)
    values = safetensors.torch.load_file(plain / "model.safetensors")
    stored = dict(values)
    for name in [name for name in values if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = values[name].shape
        weight = MXFP4.quantize(values[name].float().numpy().swapaxes(1, 2).reshape(experts * outputs, inputs))
        dense: Any = MXFP4.dequantize(weight).reshape(experts, outputs, inputs).swapaxes(1, 2)
        values[name] = torch.tensor(dense.copy())
        codes = (weight.codes[:, ::2] | weight.codes[:, 1::2] << 4).reshape(experts, outputs, -1, 16)
        del stored[name]
        stored[f"{name}_blocks"] = torch.tensor(codes)
        stored[f"{name}_scales"] = torch.tensor(weight.scales.reshape(experts, outputs, -1))
    safetensors.torch.save_file(values, plain / "model.safetensors")
    safetensors.torch.save_file(stored, published / "model.safetensors")
    described = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    written = json.loads((plain / "config.json").read_text())
    (published / "config.json").write_text(json.dumps({**written, "quantization_config": described}))
    expected = outputs_of(pretrained("GptOssForCausalLM", plain), TEXT)
    for dtype, most in (("float32", 1e-4), ("bfloat16", 0.1)):
        with LLM(published, device="cuda", dtype=dtype, max_num_seqs=40, runtime=runtime) as llm:
            found = text_logits(llm.engine, TEXT)
            formats = {format.name for format in llm.engine.compiled.weight_formats.values()}
        assert formats == {"mxfp4"}
        error = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
        assert (error.max() if dtype == "float32" else np.median(error)) < most, dtype
