"""Every field of published checkpoints: it is used, ignored on purpose, said not to be applied, or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.composition.published_fields import PUBLISHED
from transformers.utils.quantization_config import AwqConfig, GPTQConfig

import aethermind_bert.architecture
import aethermind_deepseek.architecture
import aethermind_gemma.architecture
import aethermind_glm.architecture
import aethermind_glm.mixture
import aethermind_gpt2.architecture
import aethermind_gpt2.bloom
import aethermind_gpt2.gpt_neox
import aethermind_gpt2.mpt
import aethermind_gpt_oss.architecture
import aethermind_llama.architecture
import aethermind_llama.cohere
import aethermind_llama.ernie
import aethermind_llama.granite
import aethermind_llama.mixture
import aethermind_llama.olmo
import aethermind_llama.smollm3
import aethermind_llama.stablelm
import aethermind_llama.starcoder2
import aethermind_mamba.falcon_h1
import aethermind_mamba.lfm2
import aethermind_mamba.mamba2
import aethermind_phi.architecture
import aethermind_phi.phi2
import aethermind_qwen2.architecture
import aethermind_qwen2.hybrid
import aethermind_qwen2.mixture
from aethermind.checkpoint.float_formats import read_block_size
from aethermind.checkpoint.gptq_awq import read_packing
from aethermind.checkpoint.quantized_checkpoint import open_quantized
from aethermind.checkpoint.quantized_tensors import quantization_method
from aethermind.engine.loading.loader import _eos_token_ids
from aethermind.errors import AetherMindError, ConfigError
from aethermind.model.architecture import Architecture, HasMTP
from aethermind.model.known_fields import (
    CONFIG_FIELDS,
    GENERATION_FIELDS,
    QUANTIZATION_FIELDS,
    TOKENIZER_FIELDS,
    Field,
    FieldTable,
    Handling,
    check_fields,
    config_fields,
)
from aethermind.sampling.params import read_sampling_defaults

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
MAMBA2_SIZES = {
    **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
    "num_heads": 8,
    "head_dim": 8,
    "state_size": 12,
    "n_groups": 2,
}
GPT2_SIZES = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
ARCHITECTURES: Mapping[str, tuple[Architecture, dict[str, Any]]] = {
    "qwen2": (aethermind_qwen2.architecture.QWEN2, SIZES),
    "qwen3": (aethermind_qwen2.architecture.QWEN3, SIZES),
    "qwen2_moe": (aethermind_qwen2.mixture.QWEN2_MOE, SIZES),
    "qwen3_moe": (aethermind_qwen2.mixture.QWEN3_MOE, SIZES),
    "qwen3_next": (aethermind_qwen2.hybrid.QWEN3_NEXT, SIZES),
    "qwen3_5": (aethermind_qwen2.hybrid.QWEN3_5, SIZES),
    "llama": (aethermind_llama.architecture.LLAMA, SIZES),
    "mistral": (aethermind_llama.architecture.MISTRAL, SIZES),
    "mixtral": (aethermind_llama.mixture.MIXTRAL, SIZES),
    "olmoe": (aethermind_llama.mixture.OLMOE, SIZES),
    "smollm3": (aethermind_llama.smollm3.SMOLLM3, SIZES),
    "granite": (aethermind_llama.granite.GRANITE, SIZES),
    "cohere": (aethermind_llama.cohere.COHERE, SIZES),
    "cohere2": (aethermind_llama.cohere.COHERE2, SIZES),
    "olmo2": (aethermind_llama.olmo.OLMO2, SIZES),
    "olmo3": (aethermind_llama.olmo.OLMO3, SIZES),
    "ernie4_5": (aethermind_llama.ernie.ERNIE4_5, SIZES),
    "stablelm": (aethermind_llama.stablelm.STABLELM, SIZES),
    "starcoder2": (aethermind_llama.starcoder2.STARCODER2, SIZES),
    "gemma2": (aethermind_gemma.architecture.GEMMA2, SIZES),
    "gemma3": (aethermind_gemma.architecture.GEMMA3, SIZES),
    "deepseek_v2": (aethermind_deepseek.architecture.DEEPSEEK_V2, SIZES),
    "deepseek_v3": (aethermind_deepseek.architecture.DEEPSEEK_V3, SIZES),
    "gpt_oss": (aethermind_gpt_oss.architecture.GPT_OSS, SIZES),
    "mamba2": (aethermind_mamba.mamba2.MAMBA2, MAMBA2_SIZES),
    "falcon_h1": (aethermind_mamba.falcon_h1.FALCON_H1, {**SIZES, "mamba_n_heads": 4}),
    "lfm2": (aethermind_mamba.lfm2.LFM2, {**SIZES, "block_multiple_of": 16}),
    "phi3": (aethermind_phi.architecture.PHI3, SIZES),
    "glm": (aethermind_glm.architecture.GLM, SIZES),
    "glm4": (aethermind_glm.architecture.GLM4, SIZES),
    "glm4_moe": (aethermind_glm.mixture.GLM4_MOE, SIZES),
    "gpt2": (aethermind_gpt2.architecture.GPT2, GPT2_SIZES),
    "bloom": (aethermind_gpt2.bloom.BLOOM, {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": (aethermind_gpt2.mpt.MPT, {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4}),
    "gpt_neox": (aethermind_gpt2.gpt_neox.GPT_NEOX, SIZES),
    "phi2": (aethermind_phi.phi2.PHI2, SIZES),
    "bert": (aethermind_bert.architecture.BERT, SIZES),
}
WINDOWS = {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "factor": 2.0}

OTHER_CONFIG: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "mtp_num_hidden_layers": (0, {}),
    "mtp_use_dedicated_embeddings": (True, {}),
    "num_nextn_predict_layers": (1, {}),
    "num_mtp_layers": (1, {}),
    "vocab_size": (96, {}),
    "hidden_size": (64, {}),
    "intermediate_size": (96, {}),
    "num_hidden_layers": (3, {}),
    "num_attention_heads": (8, {}),
    "num_key_value_heads": (1, {}),
    "head_dim": (16, {}),
    "max_position_embeddings": (256, {}),
    "rms_norm_eps": (1e-3, {}),
    "rope_theta": (3e5, {}),
    "rope_scaling": (YARN, {}),
    "rope_parameters": ({"rope_theta": 3e5}, {}),
    "rope_local_base_freq": (3e5, {}),
    "partial_rotary_factor": (0.75, {}),
    "no_rope_layers": ([0, 1], {}),
    "no_rope_layer_interval": (1, {"num_hidden_layers": 4}),
    "original_max_position_embeddings": (64, {"rope_scaling": YARN}),
    "sliding_window": (32, WINDOWS),
    "use_sliding_window": (False, WINDOWS),
    "max_window_layers": (0, WINDOWS),
    "layer_types": (["full_attention", "sliding_attention"], {"sliding_window": 16}),
    "tie_word_embeddings": (True, {"tie_word_embeddings": False}),
    "dtype": ("float16", {}),
    "torch_dtype": ("float16", {}),
    "eos_token_id": (7, {}),
    "hidden_act": ("relu", {}),
    "attention_bias": (True, {"attention_bias": False}),
    "use_bias": (False, {"use_bias": True}),
    "use_qkv_bias": (True, {"use_qkv_bias": False}),
    "use_parallel_residual": (False, {"use_parallel_residual": True}),
    "norm_epsilon": (1e-3, {}),
    "embedding_multiplier": (2.0, {}),
    "residual_multiplier": (2.0, {}),
    "attention_multiplier": (2.0, {}),
    "logits_scaling": (2.0, {}),
    "logit_scale": (2.0, {}),
    "hidden_activation": ("gelu", {}),
    "query_pre_attn_scalar": (64, {}),
    "swiglu_alpha": (1.0, {}),
    "swiglu_limit": (2.0, {}),
    "attn_logit_softcapping": (20.0, {}),
    "final_logit_softcapping": (20.0, {}),
    "sliding_window_pattern": (2, {}),
    "_sliding_window_pattern": (2, {}),
    "num_experts": (32, {}),
    "num_local_experts": (32, {}),
    "num_experts_per_tok": (3, {}),
    "moe_intermediate_size": (24, {}),
    "shared_expert_intermediate_size": (24, {}),
    "kv_lora_rank": (24, {}),
    "q_lora_rank": (24, {}),
    "qk_nope_head_dim": (24, {}),
    "qk_rope_head_dim": (24, {}),
    "v_head_dim": (24, {}),
    "n_routed_experts": (96, {}),
    "n_shared_experts": (3, {}),
    "first_k_dense_replace": (2, {"num_hidden_layers": 4}),
    "moe_layer_freq": (2, {"first_k_dense_replace": 0}),
    "topk_method": ("group_limited_greedy", {"n_group": 4, "topk_group": 2}),
    "scoring_func": ("tanh", {}),
    "n_group": (16, {"topk_method": "noaux_tc", "topk_group": 4}),
    "topk_group": (2, {"topk_method": "noaux_tc", "n_group": 8}),
    "routed_scaling_factor": (4.0, {}),
    "rope_interleave": (False, {}),
    "use_qk_norm": (True, {}),
    "norm_topk_prob": (True, {"norm_topk_prob": False}),
    "decoder_sparse_step": (2, {}),
    "mlp_only_layers": ([1], {}),
    "qkv_bias": (False, {}),
    "linear_conv_kernel_dim": (3, {}),
    "linear_key_head_dim": (12, {}),
    "linear_value_head_dim": (12, {}),
    "linear_num_key_heads": (4, {}),
    "linear_num_value_heads": (16, {}),
    "full_attention_interval": (2, {}),
    "num_heads": (4, {}),
    "state_size": (16, {}),
    "n_groups": (1, {}),
    "conv_kernel": (3, {}),
    "expand": (4, {}),
    "use_conv_bias": (False, {}),
    "time_step_limit": ([0.0, 0.5], {}),
    "norm_eps": (1e-3, {}),
    "conv_L_cache": (4, {}),
    "conv_bias": (True, {}),
    "full_attn_idxs": ([0], {}),
    "block_ff_dim": (1024, {}),
    "tie_embedding": (False, {}),
    "block_auto_adjust_ff_dim": (False, {}),
    "block_ffn_dim_multiplier": (20.0, {}),
    "block_multiple_of": (48, {}),
    "mamba_d_ssm": (32, {}),
    "mamba_expand": (1, {}),
    "mamba_n_heads": (8, {}),
    "mamba_d_head": (8, {}),
    "mamba_n_groups": (2, {}),
    "mamba_d_state": (16, {}),
    "mamba_d_conv": (3, {}),
    "mamba_conv_bias": (False, {}),
    "mamba_proj_bias": (True, {}),
    "projectors_bias": (True, {}),
    "mamba_rms_norm": (True, {}),
    "mamba_norm_before_gate": (False, {}),
    "lm_head_multiplier": (2.0, {}),
    "key_multiplier": (2.0, {}),
    "mlp_multipliers": ([2.0, 1.0], {}),
    "attention_in_multiplier": (2.0, {}),
    "attention_out_multiplier": (2.0, {}),
    "ssm_in_multiplier": (2.0, {}),
    "ssm_out_multiplier": (2.0, {}),
    "ssm_multipliers": ([2.0, 1.0, 1.0, 1.0, 1.0], {}),
    "n_embd": (64, {}),
    "n_embed": (64, {}),
    "d_model": (64, {}),
    "n_layers": (3, {}),
    "n_heads": (8, {}),
    "max_seq_len": (256, {}),
    "seq_length": (256, {}),
    "attn_config": ({"softmax_scale": 0.5}, {}),
    "clip_qkv": (0.75, {}),
    "rotary_pct": (0.5, {}),
    "rotary_emb_base": (3e5, {}),
    "n_layer": (3, {}),
    "n_head": (8, {}),
    "n_inner": (96, {}),
    "n_positions": (256, {}),
    "layer_norm_epsilon": (1e-3, {}),
    "layer_norm_eps": (1e-3, {}),
    "activation_function": ("gelu", {}),
    "scale_attn_weights": (False, {}),
}
"""For fields that are used, another value, and what stands beside it."""

READ_ELSEWHERE = ("architectures", "model_type", "quantization_config", "compression_config")
"""By which a package is found, and which has its own table."""


def outcome(read: Callable[[], Any]) -> Any:
    """What reading gives, or the error's text."""
    try:
        return read()
    except AetherMindError as error:
        return str(error)


def fields_of(kind: str) -> FieldTable:
    table = config_fields(ARCHITECTURES[kind][0])
    assert table is not None
    return table


def cases(kind: str, *handlings: Handling) -> list[Any]:
    return [
        pytest.param(kind, name, id=f"{kind}-{name}")
        for name, field in fields_of(kind).items()
        if field.handling in handlings and name not in READ_ELSEWHERE
    ]


def every(*handlings: Handling) -> list[Any]:
    return [case for kind in ARCHITECTURES for case in cases(kind, *handlings)]


def strange(field: Field) -> Any:
    """A value that asks for something."""
    return next(value for value in (3, "strange", [3]) if field.has_effect(value))


_OTHER_NAMES = ("intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "max_position_embeddings", "rms_norm_eps", "rope", "original", "sliding", "use_sliding", "max_window",
                "layer_types", "hidden_act")  # fmt: skip
IRRELEVANT = {
    "gpt2": ("hidden_size", *_OTHER_NAMES),
    "mpt": ("hidden_size", *_OTHER_NAMES),
    "bloom": _OTHER_NAMES,
    "bert": ("rms_norm_eps",),
    "mistral": ("use_sliding_window", "max_window_layers"),
    "mixtral": ("use_sliding_window", "max_window_layers"),
    "qwen2_moe": ("max_window_layers", "sliding_window"),
    "qwen3_moe": ("max_window_layers",),
    "qwen3_next": ("use_sliding_window", "max_window_layers", "sliding_window"),
    "qwen3_5": ("use_sliding_window", "max_window_layers", "sliding_window"),
    "mamba2": ("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope", "original", "sliding",
               "use_sliding", "max_window", "layer_types"),
    "falcon_h1": ("use_sliding_window", "max_window_layers", "sliding_window", "layer_types"),
    "lfm2": ("rms_norm_eps", "use_sliding_window", "max_window_layers", "sliding_window"),
    "smollm3": ("layer_types",),
    "cohere2": ("use_sliding_window", "max_window_layers"),
    "olmo2": ("use_sliding_window", "max_window_layers", "layer_types"),
    "olmo3": ("use_sliding_window", "max_window_layers"),
    "starcoder2": ("use_sliding_window", "max_window_layers"),
    "gemma2": ("use_sliding_window", "max_window_layers"),
    "gemma3": ("use_sliding_window", "max_window_layers"),
    "gpt_oss": ("use_sliding_window", "max_window_layers"),
    "phi3": ("use_sliding_window", "max_window_layers"),
    "deepseek_v2": ("sliding_window", "max_window_layers"),
    "deepseek_v3": ("sliding_window", "max_window_layers"),
}  # fmt: skip
"""What of the decoders' fields an architecture has no use for, by their beginnings."""


def models(architecture: Architecture, config: Mapping[str, Any]) -> tuple[Any, ...]:
    """The model, and its module for multi-token prediction if the family has them."""
    model = architecture.create(config)
    return (model, architecture.create_mtp(config)) if isinstance(architecture, HasMTP) else (model,)


@pytest.mark.parametrize(("kind", "name"), every(Handling.USED))
def test_used_fields_of_config_change_the_model_or_are_refused(kind: str, name: str) -> None:
    architecture, sizes = ARCHITECTURES[kind]
    other, beside = OTHER_CONFIG[name]
    plain = outcome(lambda: models(architecture, {**sizes, **beside}))
    changed = outcome(lambda: models(architecture, {**sizes, **beside, name: other}))
    is_irrelevant = name.startswith(IRRELEVANT.get(kind, ()))
    assert (changed == plain) is is_irrelevant


@pytest.mark.parametrize(("kind", "name"), every(Handling.IGNORED))
def test_ignored_fields_of_config_change_nothing_and_are_silent(
    kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    architecture, sizes = ARCHITECTURES[kind]
    with caplog.at_level(logging.INFO, "aethermind"):
        for value in (3, True, "strange", [3]):
            assert architecture.create({**sizes, name: value}) == architecture.create(sizes)
            check_fields(Path("m"), {"config.json": {**sizes, name: value}}, architecture)
    assert caplog.text == ""


@pytest.mark.parametrize(("kind", "name"), every(Handling.REFUSED))
def test_refused_fields_of_config_are_named_with_a_way_out(
    kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    architecture, sizes = ARCHITECTURES[kind]
    field = fields_of(kind)[name]

    def check(value: Any) -> None:
        check_fields(Path("m"), {"config.json": {**sizes, name: value}}, architecture)

    for value in field.neutral:
        check(value)
    assert caplog.text == ""
    with pytest.raises(ConfigError, match=rf"^{name} is .* in config\.json of 'm': .*(take|write) .*\.$"):
        check(strange(field))


FILES: Mapping[str, FieldTable] = {
    "generation_config.json": GENERATION_FIELDS,
    "tokenizer_config.json": TOKENIZER_FIELDS,
    "quantization_config": QUANTIZATION_FIELDS,
}


def rest(*handlings: Handling) -> list[Any]:
    return [
        pytest.param(file, name, id=f"{file}-{name}")
        for file, table in {**FILES, "config.json": CONFIG_FIELDS}.items()
        for name, field in table.items()
        if field.handling in handlings
    ]


@pytest.mark.parametrize(("file", "name"), rest(Handling.NOT_APPLIED))
def test_fields_that_are_not_applied_are_said_once(file: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    architecture = ARCHITECTURES["qwen2"][0]
    field = {**FILES, "config.json": CONFIG_FIELDS}[file][name]
    for value in field.neutral:
        check_fields(Path("m"), {file: {name: value}}, architecture)
    assert caplog.text == ""
    check_fields(Path("m"), {file: {name: strange(field)}}, architecture)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"m: {file} asks for what is not supported here: {name} is ")
    assert field.text in record.getMessage()
    if file == "generation_config.json":
        assert read_sampling_defaults({name: strange(field)}) == {}


@pytest.mark.parametrize("file", [*FILES, "config.json"])
def test_unknown_fields_are_said_in_one_line(file: str, caplog: pytest.LogCaptureFixture) -> None:
    contents = {"brand_new": 1, "also_new": [2], "absent": None, "_note": "x"}
    check_fields(Path("m"), {file: contents}, ARCHITECTURES["qwen2"][0])
    (record,) = caplog.records
    assert record.getMessage() == (
        f"m: {file} has fields that are not known here and are ignored: brand_new, also_new."
    )


def test_an_architecture_that_does_not_say_what_it_reads_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    check_fields(Path("m"), {"config.json": {"brand_new": 1, "num_experts": 8}}, object())
    assert caplog.text == ""


# generation_config.json

GENERATION = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.5}
GENERATION |= {"max_new_tokens": 9, "min_new_tokens": 2, "stop_strings": ["x"], "do_sample": False, "eos_token_id": 3}


def read_generation(contents: dict[str, Any]) -> Any:
    decoder = aethermind_qwen2.architecture.QWEN2.create(SIZES).config
    return outcome(lambda: (read_sampling_defaults(contents), _eos_token_ids(decoder, contents)))


def of(table: FieldTable, *handlings: Handling) -> list[str]:
    return [name for name, field in table.items() if field.handling in handlings]


@pytest.mark.parametrize("name", of(GENERATION_FIELDS, Handling.USED))
def test_used_fields_of_generation_change_defaults_or_ends(name: str) -> None:
    assert read_generation({name: GENERATION[name]}) != read_generation({})
    assert read_generation({name: None}) == read_generation({})


@pytest.mark.parametrize("name", of(GENERATION_FIELDS, Handling.IGNORED))
def test_ignored_fields_of_generation_change_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for value in (3, True, "strange", [3]):
        assert read_generation({name: value}) == read_generation({})
        check_fields(Path("m"), {"generation_config.json": {name: value}}, ARCHITECTURES["qwen2"][0])
    assert caplog.text == ""


# quantization_config

QUANTIZATION: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "quant_method": ("awq", {"bits": 4}),
    "load_in_8bit": (True, {"bits": 4}),
    "load_in_4bit": (True, {"bits": 4}),
    "bits": (8, {"bits": 4}),
    "w_bit": (4, {"group_size": 128}),
    "group_size": (32, {"bits": 4}),
    "q_group_size": (32, {"bits": 4}),
    "sym": (False, {"bits": 4}),
    "checkpoint_format": ("gptq_v2", {"bits": 4}),
    "format": ("gptq_v2", {"bits": 4}),
    "version": ("gemv", {"bits": 4, "quant_method": "awq"}),
    "packing_format": ("auto_round", {"bits": 4, "quant_method": "auto-round"}),
    "extra_config": ({"lm_head": {"bits": 8}}, {"bits": 4, "quant_method": "auto-round"}),
    "backend": ("llm-awq", {"bits": 4, "quant_method": "awq"}),
    "is_marlin_format": (True, {"bits": 4}),
    "dynamic": ({"+:.*": {"bits": 8}}, {"bits": 4}),
    "weight_block_size": ([128, 128], {"quant_method": "fp8"}),
    "config_groups": (
        {"group_0": {"weights": {"type": "float", "num_bits": 8, "block_structure": [128, 128]}}},
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
    ),
    "quant_algo": ("W4A16_AWQ", {"quant_method": "modelopt"}),
    "sparsity_config": ({"format": "sparse-24-bitmask"}, {"quant_method": "compressed-tensors"}),
    "transform_config": ({"config_groups": {"R1": {}}}, {"quant_method": "compressed-tensors"}),
}


class NoTensors:
    """A checkpoint without tensors, of which only the configuration is read."""

    names = ()


def read_quantization(described: Mapping[str, Any]) -> Any:
    """What is read of a quantization_config, before the tensors."""
    method = quantization_method(described, "m")
    if method in ("gptq", "awq", "auto-round"):
        return read_packing(described, "m")
    opened = outcome(lambda: open_quantized(NoTensors(), described, "m"))  # type: ignore[arg-type]
    return method, opened, read_block_size(described, "m")


@pytest.mark.parametrize("name", of(QUANTIZATION_FIELDS, Handling.USED))
def test_used_fields_of_quantization_change_how_weights_are_read(name: str) -> None:
    value, beside = QUANTIZATION[name]
    plain = outcome(lambda: read_quantization(beside))
    assert outcome(lambda: read_quantization({**beside, name: value})) != plain


@pytest.mark.parametrize("name", of(QUANTIZATION_FIELDS, Handling.IGNORED))
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_ignored_fields_of_quantization_change_nothing(
    method: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = {"quant_method": method, "bits": 4, "group_size": 128}
    for value in (3, True, False, "strange", ["strange"], {"a": 1}):
        assert read_packing({**plain, name: value}, "m") == read_packing(plain, "m")
        check_fields(Path("m"), {"quantization_config": {name: value}}, ARCHITECTURES["qwen2"][0])
    assert caplog.text == ""


# Completeness


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("qwen2", transformers.Qwen2Config),
        ("qwen3", transformers.Qwen3Config),
        ("qwen2_moe", transformers.Qwen2MoeConfig),
        ("qwen3_moe", transformers.Qwen3MoeConfig),
        ("llama", transformers.LlamaConfig),
        ("mistral", transformers.MistralConfig),
        ("mixtral", transformers.MixtralConfig),
        ("olmoe", transformers.OlmoeConfig),
        ("smollm3", transformers.SmolLM3Config),
        ("granite", transformers.GraniteConfig),
        ("cohere", transformers.CohereConfig),
        ("cohere2", transformers.Cohere2Config),
        ("olmo2", transformers.Olmo2Config),
        ("olmo3", transformers.Olmo3Config),
        ("ernie4_5", transformers.Ernie4_5Config),
        ("stablelm", transformers.StableLmConfig),
        ("starcoder2", transformers.Starcoder2Config),
        ("gemma2", transformers.Gemma2Config),
        ("gemma3", transformers.Gemma3TextConfig),
        ("gpt_oss", transformers.GptOssConfig),
        ("phi3", transformers.Phi3Config),
        ("glm", transformers.GlmConfig),
        ("glm4", transformers.Glm4Config),
        ("gpt2", transformers.GPT2Config),
        ("bloom", transformers.BloomConfig),
        ("mpt", transformers.MptConfig),
        ("gpt_neox", transformers.GPTNeoXConfig),
        ("phi2", transformers.PhiConfig),
        ("bert", transformers.BertConfig),
    ],
)
def test_what_transformers_writes_is_known(kind: str, config: Any, caplog: pytest.LogCaptureFixture) -> None:
    files = {"config.json": config().to_dict(), "generation_config.json": transformers.GenerationConfig().to_dict()}
    caplog.clear()  # transformers warns of its own defaults
    check_fields(Path("m"), files, ARCHITECTURES[kind][0])
    assert caplog.text == ""
    assert set(files["config.json"]) - set(fields_of(kind)) <= {"_attn_implementation"}
    assert set(files["generation_config.json"]) <= set(GENERATION_FIELDS)


def test_what_quantisers_write_is_known(caplog: pytest.LogCaptureFixture) -> None:
    for written in (GPTQConfig(bits=4, dataset=["x"]).to_dict(), AwqConfig().to_dict()):
        check_fields(Path("m"), {"quantization_config": written}, ARCHITECTURES["qwen2"][0])
        assert set(written) <= set(QUANTIZATION_FIELDS)
    assert caplog.text == ""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_say_nothing_unknown(name: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, files = PUBLISHED[name]
    check_fields(Path(name), files, ARCHITECTURES[kind][0])
    assert [record.getMessage() for record in caplog.records] == []


def test_there_are_many() -> None:
    config = {name for kind in ARCHITECTURES for name in fields_of(kind)}
    assert len(config) + sum(len(table) for table in FILES.values()) >= 120
