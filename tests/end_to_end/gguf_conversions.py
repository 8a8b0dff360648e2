"""GGUF files of families whose tensors llama.cpp's converter rearranges, written with the `gguf` library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import safetensors.torch
from tests.end_to_end.gguf_files import add_tokenizer, with_stacked_experts

__all__ = ["ARCHITECTURES", "write_converted"]

Array = np.ndarray[Any, Any]
Config = Mapping[str, Any]
Named = Iterator[tuple[str, Array]]

ARCHITECTURES = {
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Glm4MoeForCausalLM": "glm4moe",
    "Lfm2ForCausalLM": "lfm2",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "FalconH1ForCausalLM": "falcon-h1",
    "Mamba2ForCausalLM": "mamba2",
    "Olmo3ForCausalLM": "olmo2",
    "Cohere2ForCausalLM": "cohere2",
    "GPT2LMHeadModel": "gpt2",
    "PhiForCausalLM": "phi2",
    "GPTNeoXForCausalLM": "gptneox",
    "BloomForCausalLM": "bloom",
    "MptForCausalLM": "mpt",
}
_PRE = {
    "deepseek2": "deepseek-v3",
    "glm4moe": "glm4",
    "qwen3next": "qwen2",
    "qwen35moe": "qwen35",
    "mamba2": "olmo",
    "olmo2": "dbrx",
    "cohere2": "command-r",
    "gpt2": "gpt-2",
    "phi2": "phi-2",
    "gptneox": "olmo",
}
_SUFFIXES = (".weight", ".bias")
_Q8_0 = gguf.GGMLQuantizationType.Q8_0
_MATRICES = re.compile(
    r"blk\.\d+\.(attn_(q|q_a|q_b|kv_a_mqa|k_b|v_b|output|qkv|gate)|ssm_(in|out|alpha|beta)|ffn_(up|down)(_exps)?)\.weight"
)


def write_converted(
    directory: Path,
    path: Path,
    *,
    is_old: bool = False,
    quantised: str | None = None,
    changed: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a model directory as the converter does, in F32; an old one does not divide projections.

    With `quantised`, matrices are Q8_0, or `"dequantised"`, F32 with the values that they have in Q8_0. Values of
    keys are `changed`, or left out for None.
    """
    config = json.loads((directory / "config.json").read_text()) | {"is_old": is_old}
    arch = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**_metadata(arch, config), **changed}.items():
        if value is None:
            continue
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        else:
            kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            kinds[type(value)](f"{arch}.{key}", value)
    add_tokenizer(writer, directory, config["vocab_size"], pre=_PRE.get(arch, arch))
    for name, values in _converted(arch, config, directory):
        values = np.ascontiguousarray(values, np.float32)
        if quantised is None or values.shape[-1] % 32 or not _MATRICES.fullmatch(name):
            writer.add_tensor(name, values)
            continue
        blocks = gguf.quantize(values, _Q8_0)
        if quantised == "dequantised":
            writer.add_tensor(name, gguf.dequantize(blocks, _Q8_0).reshape(values.shape))
        else:
            writer.add_tensor(name, blocks, raw_dtype=_Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(arch: str, config: Config) -> dict[str, Any]:
    """The keys under the architecture that the converter writes and that matter."""
    rope = config.get("rope_parameters") or {}
    local = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    width = _first(config, "hidden_size", "d_model", "n_embd")
    found: dict[str, Any] = {
        "block_count": _first(config, "num_hidden_layers", "n_layer", "n_layers"),
        "context_length": _first(config, "max_position_embeddings", "seq_length", "max_seq_len", "n_positions"),
        "embedding_length": width,
        "feed_forward_length": config.get("intermediate_size") or 4 * width,
        "attention.head_count": _first(config, "num_attention_heads", "n_head", "n_heads"),
    }
    if config.get("num_key_value_heads"):
        found["attention.head_count_kv"] = config["num_key_value_heads"]
    for epsilon, key in (
        ("rms_norm_eps", "rms_epsilon"),
        ("norm_eps", "rms_epsilon"),
        ("layer_norm_eps", "epsilon"),
        ("layer_norm_epsilon", "epsilon"),
    ):
        if epsilon in config:
            found[f"attention.layer_norm_{key}"] = config[epsilon]
    if "rope_theta" in rope and arch not in ("phi2", "gptneox"):
        found["rope.freq_base"] = float(rope["rope_theta"])
    if config.get("head_dim") and arch not in ("phi2", "mamba2"):
        found |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if "partial_rotary_factor" in rope:
        head_dim = config.get("head_dim") or found["embedding_length"] // found["attention.head_count"]
        found["rope.dimension_count"] = int(head_dim * rope["partial_rotary_factor"])
    if rope.get("rope_type") == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
        numbers = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "yarn_attn_factor": "attention_factor"}
        found |= {f"rope.scaling.{key}": float(rope[name]) for key, name in numbers.items() if rope.get(name)}
        if "mscale_all_dim" in rope:
            found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    if local:
        found["rope.freq_base_swa"] = float(local["rope_theta"])
    for field, key in _EXPERTS.items():
        if config.get(field) is not None:
            found[key] = config[field]
    if arch == "glm4moe" or (arch == "deepseek2" and config["norm_topk_prob"]):
        found["expert_weights_norm"] = config["norm_topk_prob"]
    return found | _OWN.get(arch, lambda _: {})(config)


_EXPERTS = {
    "n_routed_experts": "expert_count",
    "num_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
}


def _first(config: Config, *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _deepseek(config: Config) -> dict[str, Any]:
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    found = {"attention.kv_lora_rank": rank, "rope.dimension_count": rope}
    sizes = {"key_length": config["qk_nope_head_dim"] + rope, "value_length": config["v_head_dim"]}
    if config["is_old"]:
        found |= {f"attention.{name}": size for name, size in sizes.items()}
    else:
        found |= {"attention.head_count_kv": 1, "attention.key_length": rank + rope, "attention.value_length": rank}
        found |= {f"attention.{name}_mla": size for name, size in sizes.items()}
    if config["architectures"] == ["DeepseekV3ForCausalLM"]:
        found["expert_gating_func"] = 2
    return found | ({"attention.q_lora_rank": config["q_lora_rank"]} if config["q_lora_rank"] else {})


def _lfm2(config: Config) -> dict[str, Any]:
    heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in config["layer_types"]],
        "shortconv.l_cache": config["conv_L_cache"],
    }


def _delta_net(config: Config) -> dict[str, Any]:
    heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]],
        "full_attention_interval": 4,
    }


def _falcon_h1(config: Config) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_d_ssm"],
    }


def _mamba2(config: Config) -> dict[str, Any]:
    return {
        "context_length": 2**20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.time_step_rank": config["num_heads"],
        "ssm.inner_size": config["expand"] * config["hidden_size"],
    }


_OWN: dict[str, Callable[[Config], dict[str, Any]]] = {
    "deepseek2": _deepseek,
    "glm4moe": lambda config: {"expert_gating_func": 2},
    "lfm2": _lfm2,
    "qwen3next": _delta_net,
    "qwen35": _delta_net,
    "qwen35moe": _delta_net,
    "falcon-h1": _falcon_h1,
    "mamba2": _mamba2,
    "olmo2": lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
    },
    "cohere2": lambda config: {
        "logit_scale": config["logit_scale"],
        "attention.sliding_window": config["sliding_window"],
    },
    "gptneox": lambda config: {"use_parallel_residual": config["use_parallel_residual"]},
    "mpt": lambda config: {"attention.max_alibi_bias": float(config["attn_config"]["alibi_bias_max"])},
}


def _converted(arch: str, config: Config, directory: Path) -> Named:
    """The tensors by GGUF's names."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    known = gguf.get_tensor_name_map(kind, _first(config, "num_hidden_layers", "n_layer", "n_layers"))
    tensors = with_stacked_experts(safetensors.torch.load_file(directory / "model.safetensors"))
    for hf_name, tensor in tensors.items():
        for name, values in _TENSORS.get(arch, _unchanged)(config, hf_name, tensor.float().numpy()):
            for end, other in ((".e_score_correction_bias", ".e_score_correction.bias"), (".dt_bias", ".dt_proj.bias")):
                name = re.sub(f"{re.escape(end)}$", other, name)
            found = known.get_name(name, try_suffixes=_SUFFIXES) or _of_mtp(name)
            assert found is not None, name
            yield found, values


def _of_mtp(name: str) -> str | None:
    """The name of a tensor of a layer that drafts tokens, which the library knows for some architectures only."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.(enorm|hnorm|eh_proj|shared_head\.norm)\.weight", name)
    return found and f"blk.{found[1]}.nextn.{found[2].replace('.', '_')}.weight"


def _unchanged(_: Config, name: str, values: Array) -> Named:
    yield name, values


def _latent(config: Config, name: str, values: Array) -> Named:
    """Keys' part of a projection is transposed for each head."""
    if config["is_old"] or not name.endswith("kv_b_proj.weight"):
        yield name, values
        return
    by_head = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
    nope = config["qk_nope_head_dim"]
    yield name.replace("kv_b_proj", "k_b_proj"), by_head[:, :nope].swapaxes(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), by_head[:, nope:]


def _convolution(_: Config, name: str, values: Array) -> Named:
    yield name, values[:, 0] if "conv" in name and values.ndim == 3 else values


def _mamba_tensor(config: Config, name: str, values: Array) -> Named:
    groups = _first(config, "n_groups", "mamba_n_groups")
    if name.endswith("A_log"):
        values = -np.exp(values)[:, None]
    elif name.endswith(".D"):
        values = values[:, None]
    elif re.search(r"(mixer|mamba)\.norm\.weight", name):
        values = values.reshape(groups, -1)
    yield from _convolution(config, name, values)


def _falcon_tensor(config: Config, name: str, values: Array) -> Named:
    """Multipliers are multiplied into weights."""
    inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    factors = {
        "gate_proj": config["mlp_multipliers"][0],
        "down_proj": config["mlp_multipliers"][1],
        "q_proj": config["attention_in_multiplier"],
        "k_proj": config["attention_in_multiplier"] * config["key_multiplier"],
        "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    module = name.rpartition(".")[0].rpartition(".")[2]
    values = values * np.float32(factors.get(module, 1.0))
    if module == "in_proj":
        widths = (inner, inner, state, state, config["mamba_n_heads"])
        rows = np.repeat(np.float32(config["ssm_multipliers"]) * np.float32(config["ssm_in_multiplier"]), widths)
        values = values * rows[:, None]
    yield from _mamba_tensor(config, name, values)


def _next_tensor(config: Config, name: str, values: Array) -> Named:
    """Norms have 1 added; projections of gated delta nets are queries, keys and values, and gates."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values + 1
    elif name.endswith("A_log"):
        values = -np.exp(values)
    if name.endswith("experts.gate_up_proj"):
        for projection, half in zip(("gate_proj", "up_proj"), np.split(values, 2, axis=1), strict=True):
            yield name.replace("gate_up_proj", f"{projection}.weight"), half
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", values
    elif name.endswith("in_proj_qkvz.weight") and not config["is_old"]:
        keys, ratio = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
        widths = np.cumsum([config["linear_key_head_dim"]] * 2 + [ratio * config["linear_value_head_dim"]])
        parts = [
            part.reshape(-1, values.shape[1]) for part in np.split(values.reshape(keys, -1, values.shape[1]), widths, 1)
        ]
        yield name.replace("qkvz", "qkv"), np.concatenate(parts[:3])
        yield name.replace("qkvz", "z"), parts[3]
    else:
        yield from _convolution(config, name, values)


def _tiled_tensor(config: Config, name: str, values: Array) -> Named:
    """Value heads are in turn of the key heads."""
    keys, width = config["linear_num_key_heads"], config["linear_value_head_dim"]

    def tiled(part: Array, size: int) -> Array:
        return part.reshape(keys, -1, size, *part.shape[1:]).swapaxes(0, 1).reshape(part.shape)

    if "linear_attn" in name and not name.endswith("linear_attn.norm.weight"):
        if "in_proj_qkv" in name or "conv1d" in name:
            others = 2 * keys * config["linear_key_head_dim"]
            values = np.concatenate([values[:others], tiled(values[others:], width)])
        elif "out_proj" in name:
            values = tiled(values.T, width).T
        else:
            values = tiled(values, width if "in_proj_z" in name else 1)
    yield from _next_tensor(config, name, values)


def _by_part(config: Config, name: str, values: Array) -> Named:
    """Rows of fused projections are queries, keys and values, not head by head."""
    if "query_key_value" in name:
        heads = _first(config, "num_attention_heads", "n_head")
        values = values.reshape(heads, 3, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    yield name.removeprefix("transformer."), values


def _transposed(_: Config, name: str, values: Array) -> Named:
    yield name, values.T if re.search(r"c_(attn|proj|fc)\.weight", name) else values


_TENSORS: dict[str, Callable[[Config, str, Array], Named]] = {
    "deepseek2": _latent,
    "lfm2": _convolution,
    "qwen3next": _next_tensor,
    "qwen35": _tiled_tensor,
    "qwen35moe": _tiled_tensor,
    "falcon-h1": _falcon_tensor,
    "mamba2": _mamba_tensor,
    "gptneox": _by_part,
    "bloom": _by_part,
    "gpt2": _transposed,
}
