"""A .gguf file as a model source: its metadata as config.json, its end tokens, its tokenizer and its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aethermind.checkpoint.gguf import GgufStrings
from aethermind.checkpoint.gguf_tensors import LONGROPE_FACTORS, ROPE_FACTORS, GgufParts, GgufTensors
from aethermind.errors import ConfigError
from aethermind.text.gguf_tokenizer import CONTROL

if TYPE_CHECKING:
    from aethermind.checkpoint.source import TensorInfo
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.ops.weight_format import WeightFormat
    from aethermind.plugins.registry import Registry
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["GgufSource", "end_token_ids"]

_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_OPTIONAL_FIELDS = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rotary_dim": "rope.dimension_count",
}
_ROPE_SCALING = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_EXPERTS = {
    "num_experts_per_tok": "expert_used_count",
    "norm_topk_prob": "expert_weights_norm",
    "clip_qkv": "attention.clamp_kqv",
}
_EXPERT_WIDTHS = (
    ("moe_intermediate_size", "experts.gate_proj", True),
    ("moe_intermediate_size", "experts.0.gate_proj", False),
    ("shared_expert_intermediate_size", "shared_expert.gate_proj", False),
)
"""Fields that are rows of a layer's tensors: their names, and whether these hold all experts."""
_NEUTRAL_AT_ONE = ("attn_factor", "yarn_attn_factor", "yarn_ext_factor")
"""Further factors of rotary scaling, which change nothing at 1."""
_POOLINGS = {0: None, 1: "mean", 2: "cls", 3: "last"}
_GENERATION = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


class GgufSource:
    """One .gguf file, or the first of several; implements `ModelSource`. The file is mapped at the first access."""

    def __init__(self, path: Path, families: Registry[GgufFamily]) -> None:
        """Take the file, and the registry that describes its `general.architecture`."""
        self.path = path
        self._families = families

    def config(self) -> dict[str, Any]:
        """The metadata in the form of config.json. ConfigError for missing or unknown fields, CheckpointError for a
        broken file or an unsupported quantisation.
        """
        family, sizes = self._family, self._sizes()
        tensors = self.weights()
        experts = self._experts(tensors)
        if "rotary_dim" in sizes:
            sizes["partial_rotary_factor"] = sizes.pop("rotary_dim") / max(sizes["head_dim"], 1)
        return {
            **sizes,
            **self._rope_scaling(),
            **family.fields,
            **experts,
            "architectures": [(family.mixture if experts else None) or family.architecture],
            "vocab_size": tensors.info("model.embed_tokens.weight").shape[0],
            "tie_word_embeddings": "lm_head.weight" not in tensors.names,
            "dtype": _computed_in([tensors.info(name) for name in tensors.names]),
            "eos_token_id": end_token_ids(self._file.metadata),
            "attention_bias": "model.layers.0.self_attn.o_proj.bias" in tensors.names,
            "use_qkv_bias": "model.layers.0.self_attn.q_proj.bias" in tensors.names,
            "is_causal": self._file.metadata.get(f"{self._family_name}.attention.causal", True),
        }

    def generation(self) -> dict[str, Any]:
        """`general.sampling.*` by the names of generation_config.json, rounded to the precision of float32."""
        found = {theirs: self._file.metadata.get(f"general.sampling.{ours}") for ours, theirs in _GENERATION.items()}
        return {
            name: float(f"{value:.7g}") if isinstance(value, float) else value
            for name, value in found.items()
            if value is not None
        }

    def described(self) -> dict[str, dict[str, Any]]:
        return {}

    def tokenizer(self) -> Tokenizer:
        from aethermind.text.gguf_tokenizer import gguf_tokenizer

        return gguf_tokenizer(self._file.metadata, self._family.splits, self.path)

    def pooling(self) -> str | None:
        key = f"{self._family_name}.pooling_type"
        kind = self._file.metadata.get(key, 0)
        if kind not in _POOLINGS:
            raise ConfigError(
                f"{self.path} has {key} {kind!r:.40}, which is none of those that are computed. Say which pooling to "
                "use instead: last, mean or cls."
            )
        return _POOLINGS[kind]

    def text_limit(self) -> int | None:
        return None

    def names(self) -> tuple[str, ...]:
        return self.weights().names

    def weights(self) -> GgufTensors:
        family, head_dim = self._family, self._sizes()["head_dim"]
        if not isinstance(head_dim, int):
            raise ConfigError(f"{self.path} has heads of {head_dim!r} rows; that is not supported.")
        return GgufTensors(self._file, family.modules, family.interleaved, head_dim)

    def weight_formats(self) -> dict[str, WeightFormat]:
        tensors = self.weights()
        found = {name: tensors.info(name).weight_format for name in tensors.names}
        return {name: format for name, format in found.items() if format is not None}

    @cached_property
    def _file(self) -> GgufParts:
        return GgufParts(self.path)

    @property
    def _family_name(self) -> str:
        name = self._file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ConfigError(f"{self.path} has no general.architecture in its metadata. Convert the model again.")
        return name

    @property
    def _family(self) -> GgufFamily:
        return self._families.get(self._family_name)

    def _sizes(self) -> dict[str, Any]:
        """The values of `_FIELDS` and `_OPTIONAL_FIELDS`, with `head_dim` in every case."""
        found = self._under(f"{self._family_name}.")
        keys = {**_FIELDS, **_OPTIONAL_FIELDS, **self._family.metadata}
        for key in (keys[name] for name in _FIELDS):
            if key not in found:
                raise ConfigError(
                    f"{self.path} has no {self._family_name}.{key} in its metadata. Convert the model to GGUF again."
                )
        sizes = {name: found[key] for name, key in keys.items() if key in found}
        for name, value in sizes.items():
            if not isinstance(value, int | float):
                key = f"{self._family_name}.{keys[name]}"
                raise ConfigError(f"{self.path} has a {key} that is not one number; that is not supported.")
        sizes.setdefault("head_dim", sizes["hidden_size"] // max(sizes["num_attention_heads"], 1))
        return sizes

    def _experts(self, tensors: GgufTensors) -> dict[str, Any]:
        """The fields about experts; none for a dense model. Widths are taken from tensors: not all files have them."""
        num_experts = self._file.metadata.get(f"{self._family_name}.expert_count", 0)
        if not isinstance(num_experts, int) or num_experts < 0:
            raise ConfigError(
                f"{self.path} has {self._family_name}.expert_count {num_experts!r:.40}; that is a number."
            )
        if not num_experts:
            return {}
        given = {name: self._file.metadata.get(f"{self._family_name}.{key}") for name, key in _EXPERTS.items()}
        found = {name: value for name, value in given.items() if value is not None}
        for field, module, count in _EXPERT_WIDTHS:
            name = f"model.layers.0.mlp.{module}.weight"
            if name in tensors.names:
                found[field] = tensors.info(name).shape[0] // (num_experts if count else 1)
        return {**found, "num_experts": num_experts}

    def _rope_scaling(self) -> dict[str, Any]:
        prefix = f"{self._family_name}.rope.scaling."
        given = self._under(prefix)
        given.pop("finetuned", None)
        if set(LONGROPE_FACTORS.values()) <= set(self._file.names):
            return self._longrope(given)
        for key in _NEUTRAL_AT_ONE:
            if given.get(key) == 1.0:
                del given[key]
        # Older files have no type (GGUF specification); like llama.cpp, a factor alone is read as linear scaling.
        factor = given.get("factor", self._file.metadata.get(f"{self._family_name}.rope.scale_linear"))
        if "type" not in given and factor not in (None, 0.0, 1.0):
            given |= {"type": "linear", "factor": factor}
        is_scaled = given.get("type", "none") != "none"
        if ROPE_FACTORS in self._file.names:
            if is_scaled:
                raise ConfigError(f"{self.path} has both {ROPE_FACTORS} and {prefix}type, which is not supported.")
            factors = np.asarray(self._file.array(ROPE_FACTORS)).ravel().tolist()
            return {"rope_scaling": {"rope_type": "factors", "factors": factors}}
        if not is_scaled:
            return {}
        for key in given:
            if key not in _ROPE_SCALING:
                raise ConfigError(f"{self.path} has {prefix}{key} in its metadata, which is not supported.")
        return {"rope_scaling": {_ROPE_SCALING[key]: value for key, value in given.items()}}

    def _longrope(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """LongRoPE, whose factors are tensors."""
        factors = {
            field: np.asarray(self._file.array(name)).ravel().tolist() for field, name in LONGROPE_FACTORS.items()
        }
        return {
            "rope_scaling": {"rope_type": "longrope", **factors, "attention_factor": given.get("attn_factor")},
            "original_max_position_embeddings": given.get("original_context_length"),
        }

    def _under(self, prefix: str) -> dict[str, Any]:
        """The metadata with this prefix, by the rest of their keys."""
        metadata = self._file.metadata
        return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def _computed_in(tensors: list[TensorInfo]) -> str:
    """The dtype of most values; bfloat16 for quantised models, whose norms and biases are float32 in any case."""
    if any(info.weight_format for info in tensors):
        return "bfloat16"
    sizes: Counter[str] = Counter()
    for info in tensors:
        sizes[str(info.dtype)] += info.num_bytes
    return sizes.most_common(1)[0][0]


_NAMED = ("eos", "eot", "eom")
_TEXTS = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<eos>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|im_end|>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts of control tokens that models write only at the end of a text or a turn."""


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """List the tokens that end an answer: those that the metadata names, then control tokens with the text of an end.

    The metadata name one token of each kind at most, while generation_config.json lists several and the converter
    writes the first. The others are recognised by their texts.
    """
    named = [metadata[key] for name in _NAMED if (key := f"tokenizer.ggml.{name}_token_id") in metadata]
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, GgufStrings) or not isinstance(types, np.ndarray):  # the file has no tokenizer
        return named
    control = np.flatnonzero(types[: len(tokens)] == CONTROL).tolist()
    known = (token_id for token_id, text in zip(control, tokens.picked(control), strict=True) if text in _TEXTS)
    return list(dict.fromkeys([*named, *known]))
