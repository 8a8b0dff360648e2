"""DeepSeek's configurations, weights that conformance cases lack, and refusals of what latent caches cannot do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aethermind import LLM
from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.text_pass import text_logits
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.model import Latent, RouterConfig
from aethermind.runtime import Runtime
from aethermind.testing.families import ModelCase
from aethermind.testing.families.parity import assert_close_to, random_prompts, write_numeric_tokenizer
from aethermind.testing.families.transformers_reference import TransformersReference
from aethermind_deepseek.architecture import DEEPSEEK_V2, DEEPSEEK_V3
from aethermind_deepseek.conformance import CASES

YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""config.json of DeepSeek-V3, without what training needs."""
V2_LITE = {
    **V3,
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "q_lora_rank": None,
    "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
}


def case(name: str) -> ModelCase:
    return next(one for one in CASES if one.name == name)


def written(name: str, folder: Path) -> Path:
    TransformersReference().write(case(name), folder)
    write_numeric_tokenizer(folder)
    return folder


def test_published_configurations_mean_what_their_papers_say() -> None:
    v3, lite = DEEPSEEK_V3.create(V3), DEEPSEEK_V2.create(V2_LITE)
    assert v3.cache_layout() == (Latent(512, 64),) * 61
    mscale = 0.1 * math.log(40) + 1
    assert v3.attention.scale == pytest.approx(192**-0.5 * mscale**2)
    assert lite.attention.scale == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)
    assert (v3.attention.q_lora_rank, lite.attention.q_lora_rank) == (1536, 0)
    assert v3.mixture.router == RouterConfig(True, True, 8, 4, 2, 2.5)
    assert lite.mixture.router == RouterConfig()
    assert (v3.mixture.renormalize, lite.mixture.renormalize) == (True, False)
    assert (v3.mixture.sparse_layers[0], lite.mixture.sparse_layers[0]) == (3, 1)
    assert (v3.mixture.shared_width, lite.mixture.shared_width) == (2048, 2816)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_method": "random"}, "topk_method 'random'"),
        ({"n_group": 7}, r"n_group \(7\) in config.json should divide n_routed_experts"),
        ({"num_experts_per_tok": 129}, "more than the 128 experts"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor .* positive"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace .* got -1"),
    ],
    ids=str,
)
def test_bad_fields_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DEEPSEEK_V3.create({**V3, **changes})


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_the_correction_bias_chooses_experts_and_layers_of_further_tokens_are_left_out(
    runtime: Runtime, tmp_path: Path, device: str
) -> None:
    """The bias, which transformers initialises with zeros, is in the file, and so is a layer behind the last."""
    folder = written("deepseek_v3", tmp_path)
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    weights[name] = np.linspace(-0.4, 0.4, 8, dtype=np.float32)[np.random.default_rng(1).permutation(8)]
    (text,) = random_prompts(24, vocab_size=131)
    plain = TransformersReference().outputs(case("deepseek_v3"), folder)(text)
    save_file(weights, path, metadata={"format": "pt"})
    expected = TransformersReference().outputs(case("deepseek_v3"), folder)(text)
    assert abs(expected - plain).max() > 0.1, "the bias has an effect"
    further = {f"model.layers.2.{part}": np.ones(3, np.float32) for part in ("eh_proj.weight", "mlp.experts.0.x")}
    save_file({**weights, **further}, path, metadata={"format": "pt"})
    with LLM(folder, device=device, dtype="float32", runtime=runtime, fallback="allow") as llm:
        assert_close_to(expected, list(text_logits(llm.engine, text)))


def test_quantised_weights_include_the_projections_of_heads(runtime: Runtime, tmp_path: Path) -> None:
    folder = written("deepseek_v2_lite", tmp_path)
    expected = TransformersReference().outputs(case("deepseek_v2_lite"), folder)
    (text,) = random_prompts(24, vocab_size=131)
    with LLM(folder, device="cpu", dtype="float32", quantization="int8", runtime=runtime, fallback="allow") as llm:
        formats = llm.engine.compiled.weight_formats
        assert {f"model.layers.{layer}.self_attn.{part}_b_proj.weight" for layer in (0, 1) for part in "kv"} <= {
            *formats
        }
        assert_close_to(expected(text), list(text_logits(llm.engine, text)), 0.08, 0.4)


def test_what_a_latent_cache_cannot_do_is_refused_in_a_sentence(runtime: Runtime, tmp_path: Path) -> None:
    folder = written("deepseek_v2_lite", tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"caches latent vectors, .* Pass auto as kv_cache_dtype\.$"):
        LLM(folder, device="cpu", kv_cache_dtype="int8", runtime=runtime)
    with LLM(folder, device="cpu", dtype="float32", runtime=runtime, fallback="allow") as llm:
        cache = llm.engine.cache
        cache.open("r", [1, 2, 3])
        assert cache.shift("r", 0, 5) is CacheOutcome.LATENT_KEYS
        cache.release("r")
        assert llm.engine.compiled.cache_spec.bytes_per_token == 2 * (24 + 8) * 4


def test_queries_may_have_full_rank_by_null_only() -> None:
    without = {name: value for name, value in V3.items() if name != "q_lora_rank"}
    assert DEEPSEEK_V3.create(without).attention.q_lora_rank == 1536
    assert DEEPSEEK_V3.create({**V3, "q_lora_rank": None}).attention.q_lora_rank == 0
