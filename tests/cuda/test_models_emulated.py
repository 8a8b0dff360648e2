"""Whole models on an emulated GPU, kernels and all, answer as on the `numpy` device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.emulator.opening import emulated_cuda
from tests.sim.small_model import write_small_model

from aethermind import LLM, Runtime, SamplingParams
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.transformers_reference import TransformersReference

PROMPTS = ["Once upon a time there was a", "The", "A little fox ran over the snow"]
NUM_TOKENS = 10
Answer = Callable[..., list[list[int]]]


@pytest.fixture(scope="module")
def model(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers with random weights."""
    folder = tmp_path_factory.mktemp("small") / "model"
    return str(write_small_model(Path(runtime.models.locate("demo")), folder))


@pytest.fixture(params=[0, 1])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmulatedDriver]:
    """Its seed decides how late everything is."""
    with emulated_cuda(tmp_path, request.param) as driver:
        yield driver


@pytest.fixture
def answer(model: str) -> Answer:
    """Token ids of answers to all prompts on a device."""

    def ask(device: str, params: SamplingParams, **options: Any) -> list[list[int]]:
        options = {"dtype": "float32", "max_model_len": 64, **options}
        llm = LLM(model, device=device, runtime=Runtime.boot(), **options)
        try:
            return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
        finally:
            llm.close()

    return ask


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixture": (
        "Qwen2MoeForCausalLM",
        {
            **SMALL,
            "vocab_size": 2048,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
        },
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        {
            **SMALL,
            "vocab_size": 2048,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        {
            **SMALL,
            "vocab_size": 2048,
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        },
    ),
    "falcon_h1": (
        "FalconH1ForCausalLM",
        {
            **SMALL,
            "vocab_size": 2048,
            "mamba_d_ssm": 48,
            "mamba_n_heads": 6,
            "mamba_n_groups": 2,
            "mamba_d_state": 12,
            "mamba_chunk_size": 16,
            "mamba_rms_norm": True,
        },
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        {
            **SMALL,
            "vocab_size": 2048,
            "layer_types": ["conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek": (
        "DeepseekV3ForCausalLM",
        {
            **SMALL,
            "vocab_size": 2048,
            "num_key_value_heads": 4,
            "kv_lora_rank": 24,
            "q_lora_rank": 20,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 10,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
    ),
}
LAUNCHED = {
    "mixture": "router_topk",
    "gemma2": "elementwise_softcap_float32",
    "qwen3_next": "gated_delta_rule_128_float32",
    "falcon_h1": "ssd_scan_128_float32",
    "lfm2": "causal_conv1d_float32",
    "deepseek": "mla_attention_rows_float32",
}

GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


def test_greedy_tokens_of_a_ragged_batch(driver: EmulatedDriver, answer: Answer) -> None:
    """Prompts in chunks, decodes as graphs."""
    assert answer("cuda", GREEDY, max_num_batched_tokens=7) == answer("numpy", GREEDY)
    assert driver.calls["graph_launch"] > 0
    assert driver.launched["sample_tokens"] > 0


def test_steps_run_ahead_of_their_tokens(driver: EmulatedDriver, answer: Answer) -> None:
    """Log probabilities come down behind steps with biases and masks, which go on from tokens that only the GPU has."""
    params = SamplingParams(
        temperature=0.0, max_tokens=4, logprobs=2, logit_bias={700: 3.0}, allowed_token_ids=range(300, 900)
    )
    assert answer("cuda", params) == answer("numpy", params)
    assert driver.launched["token_logprobs"] == driver.launched["adjust_logits_mask_tokens"] > 0


def test_preempted_sequences_are_swapped_out_and_in(driver: EmulatedDriver, answer: Answer) -> None:
    options = {"num_kv_blocks": 12, "block_size": 2, "enable_prefix_caching": False, "swap_space": 0.1}
    assert answer("cuda", GREEDY, **options) == answer("numpy", GREEDY)
    assert driver.launched["sample_tokens"] > 0


@pytest.mark.parametrize(("quantization", "kv_cache_dtype"), [("int4", "auto"), ("int8", "int8")])
def test_quantised_weights_are_packed_and_multiplied_on_the_gpu(
    driver: EmulatedDriver, answer: Answer, quantization: str, kv_cache_dtype: str
) -> None:
    """Quantised by the device, then read by the fused projections of queries, keys and values.

    Rows of the embedding come out of the head's codes on one of the two devices, unless those are of 4 bits.
    """
    options = {"quantization": quantization, "lm_head_quantization": "int4", "kv_cache_dtype": kv_cache_dtype}
    assert answer("cuda", GREEDY, **options) == answer("numpy", GREEDY, **options)
    assert driver.launched[f"quantize_codes_{quantization}_float32"] > 0
    quantized = "_quantized" if kv_cache_dtype == "int8" else ""
    assert driver.launched[f"qkv_rope_cache_write{quantized}_float32"] > 0
    assert driver.launched[f"linear_quantized_skinny8_{quantization}_float32"] > 0


@pytest.mark.parametrize("driver", [0], indirect=True)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_other_families(driver: EmulatedDriver, family: str, tmp_path: Path) -> None:
    """Every operator has a kernel; prompts of several tokens and decodes answer as on the `numpy` device."""
    architecture, config = FAMILIES[family]
    directory = tmp_path / "model"
    TransformersReference().write(ModelCase(family, architecture, config), directory)
    prompts: Any = [{"prompt_token_ids": [7 * n + 3 * i for i in range(n)]} for n in (21, 5, 1)]
    found = {}
    for device in ("cuda", "numpy"):
        fallback = {} if device == "cuda" else {"fallback": "allow"}
        options: Any = {"dtype": "float32", "tokenizer": "demo", "max_model_len": 48, **fallback}
        llm = LLM(directory, device=device, runtime=Runtime.boot(), **options)
        found[device] = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
        llm.close()
    assert found["cuda"] == found["numpy"]
    assert driver.launched[LAUNCHED[family]] > 0


def test_sampling_with_a_seed(driver: EmulatedDriver, answer: Answer) -> None:
    params = SamplingParams(
        temperature=0.9, top_k=30, top_p=0.9, min_p=0.02, repetition_penalty=1.1, seed=5, max_tokens=4
    )
    assert answer("cuda", params) == answer("numpy", params)
    assert driver.launched["sample_tokens"] > 0
