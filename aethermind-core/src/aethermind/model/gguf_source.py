"""A .gguf file as a whole model: its metadata in the terms of config.json, its tokenizer and its tensors."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aethermind.checkpoint.gguf_names import ROPE_FACTORS, GgufTensors
from aethermind.checkpoint.gguf_parts import GgufParts
from aethermind.errors import ConfigError
from aethermind.model.gguf_ends import end_token_ids

if TYPE_CHECKING:
    from aethermind.checkpoint.source import TensorInfo
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.model.registry import GgufFamilyRegistry
    from aethermind.ops.weight_format import WeightFormat
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["GgufSource"]

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
_NEUTRAL_AT_ONE = ("attn_factor", "yarn_attn_factor", "yarn_ext_factor")
"""What rotary scaling multiplies with, besides what follows from its factor."""
_POOLINGS = {0: None, 1: "mean", 2: "cls", 3: "last"}
_GENERATION = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


class GgufSource:
    """One .gguf file, or the first of several; implements `ModelSource`. Mapped when first asked for something."""

    def __init__(self, path: Path, families: GgufFamilyRegistry) -> None:
        """Name the file and who knows what its `general.architecture` means."""
        self.path = path
        self._families = families

    def config(self) -> dict[str, Any]:
        """What config.json would say; ConfigError for what is missing or unknown, CheckpointError for what is broken
        or quantised in a way that cannot be read.
        """
        family, sizes = self._family, self._sizes()
        tensors = self.weights()
        if "rotary_dim" in sizes:
            sizes["partial_rotary_factor"] = sizes.pop("rotary_dim") / max(sizes["head_dim"], 1)
        return {
            **sizes,
            **self._rope_scaling(),
            "architectures": [family.architecture],
            "vocab_size": tensors.info("model.embed_tokens.weight").shape[0],
            "tie_word_embeddings": "lm_head.weight" not in tensors.names,
            "dtype": _computed_in([tensors.info(name) for name in tensors.names]),
            "eos_token_id": end_token_ids(self._file.metadata),
            "attention_bias": "model.layers.0.self_attn.o_proj.bias" in tensors.names,
            "is_causal": self._file.metadata.get(f"{self._family_name}.attention.causal", True),
        }

    def generation(self) -> dict[str, Any]:
        """`general.sampling.*` by the names of generation_config.json, as decimal as they were before float32."""
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
        """The numbers of `_FIELDS` and `_OPTIONAL_FIELDS`, and `head_dim` always."""
        found = self._under(f"{self._family_name}.")
        for key in _FIELDS.values():
            if key not in found:
                raise ConfigError(
                    f"{self.path} has no {self._family_name}.{key} in its metadata. Convert the model to GGUF again."
                )
        sizes = {name: found[key] for name, key in (_FIELDS | _OPTIONAL_FIELDS).items() if key in found}
        for name, value in sizes.items():
            if not isinstance(value, int | float):
                key = f"{self._family_name}.{(_FIELDS | _OPTIONAL_FIELDS)[name]}"
                raise ConfigError(f"{self.path} has a {key} that is not one number; that is not supported.")
        sizes.setdefault("head_dim", sizes["hidden_size"] // max(sizes["num_attention_heads"], 1))
        return sizes

    def _rope_scaling(self) -> dict[str, Any]:
        prefix = f"{self._family_name}.rope.scaling."
        given = self._under(prefix)
        given.pop("finetuned", None)
        for key in _NEUTRAL_AT_ONE:
            if given.get(key) == 1.0:
                del given[key]
        # Files from before there were types, by the specification of GGUF; llama.cpp reads a factor alone so, too.
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

    def _under(self, prefix: str) -> dict[str, Any]:
        """The metadata whose keys begin so, by the rest of their keys."""
        metadata = self._file.metadata
        return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def _computed_in(tensors: list[TensorInfo]) -> str:
    """The dtype of most values. Beside quantised ones norms and biases are float32, which says nothing: bfloat16."""
    if any(info.weight_format for info in tensors):
        return "bfloat16"
    sizes: Counter[str] = Counter()
    for info in tensors:
        sizes[str(info.dtype)] += info.num_bytes
    return sizes.most_common(1)[0][0]
