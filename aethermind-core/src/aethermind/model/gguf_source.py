"""A .gguf file as a whole model: its metadata in the terms of config.json, its tokenizer and its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.gguf_names import GgufTensors
from aethermind.errors import CheckpointError, ConfigError

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
_GENERATION = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_END_TOKENS = ("eos", "eot", "eom")


class GgufSource:
    """One .gguf file; implements `ModelSource`. The file is mapped when first asked for something."""

    def __init__(self, path: Path, families: GgufFamilyRegistry) -> None:
        """Name the file and who knows what its `general.architecture` means."""
        self.path = path
        self._families = families

    def config(self) -> dict[str, Any]:
        """What config.json would say; ConfigError for what is missing or unknown, CheckpointError for what is broken
        or quantised in a way that cannot be read.
        """
        prefix = f"{self._family_name}."
        family, metadata = self._family, self._file.metadata
        tensors = self.weights()
        found = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
        for key in _FIELDS.values():
            if key not in found:
                raise ConfigError(f"{self.path} has no {prefix}{key} in its metadata. Convert the model to GGUF again.")
        config = {name: found[key] for name, key in (_FIELDS | _OPTIONAL_FIELDS).items() if key in found}
        for name, value in config.items():
            if not isinstance(value, int | float):
                key = (_FIELDS | _OPTIONAL_FIELDS)[name]
                raise ConfigError(f"{self.path} has a {prefix}{key} that is not one number; that is not supported.")
        config.setdefault("head_dim", config["hidden_size"] // max(config["num_attention_heads"], 1))
        if "rotary_dim" in config:
            config["partial_rotary_factor"] = config.pop("rotary_dim") / max(config["head_dim"], 1)
        return {
            **config,
            **self._rope_scaling(found, prefix),
            "architectures": [family.architecture],
            "vocab_size": tensors.info("model.embed_tokens.weight").shape[0],
            "tie_word_embeddings": "lm_head.weight" not in tensors.names,
            "dtype": _computed_in([tensors.info(name) for name in tensors.names]),
            "eos_token_id": [
                metadata[key] for name in _END_TOKENS if (key := f"tokenizer.ggml.{name}_token_id") in metadata
            ],
        }

    def generation(self) -> dict[str, Any]:
        """`general.sampling.*` by the names of generation_config.json, as decimal as they were before float32."""
        found = {theirs: self._file.metadata.get(f"general.sampling.{ours}") for ours, theirs in _GENERATION.items()}
        return {
            name: float(f"{value:.7g}") if isinstance(value, float) else value
            for name, value in found.items()
            if value is not None
        }

    def tokenizer(self) -> Tokenizer:
        from aethermind.text.gguf_tokenizer import gguf_tokenizer

        return gguf_tokenizer(self._file.metadata, self._family.splits, self.path)

    def pooling(self) -> str | None:
        return None

    def weights(self) -> GgufTensors:
        return GgufTensors(self._file, self._family.modules)

    def weight_formats(self) -> dict[str, WeightFormat]:
        tensors = self.weights()
        found = {name: tensors.info(name).weight_format for name in tensors.names}
        return {name: format for name, format in found.items() if format is not None}

    @cached_property
    def _file(self) -> GgufFile:
        file = GgufFile(self.path)
        num_parts = file.metadata.get("split.count", 1)
        if num_parts != 1:
            raise CheckpointError(
                f"{self.path} is one of {num_parts} parts of a model. Join them with `llama-gguf-split --merge`."
            )
        return file

    @property
    def _family_name(self) -> str:
        name = self._file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ConfigError(f"{self.path} has no general.architecture in its metadata. Convert the model again.")
        return name

    @property
    def _family(self) -> GgufFamily:
        return self._families.get(self._family_name)

    def _rope_scaling(self, found: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        part = "rope.scaling."
        given = {key.removeprefix(part): value for key, value in found.items() if key.startswith(part)}
        given.pop("finetuned", None)
        if given.get("type", "none") == "none":
            return {}
        for key in given:
            if key not in _ROPE_SCALING:
                raise ConfigError(f"{self.path} has {prefix}{part}{key} in its metadata, which is not supported.")
        return {"rope_scaling": {_ROPE_SCALING[key]: value for key, value in given.items()}}


def _computed_in(tensors: list[TensorInfo]) -> str:
    """The dtype of most values. Beside quantised ones norms and biases are float32, which says nothing: bfloat16."""
    if any(info.weight_format for info in tensors):
        return "bfloat16"
    sizes: Counter[str] = Counter()
    for info in tensors:
        sizes[str(info.dtype)] += info.num_bytes
    return sizes.most_common(1)[0][0]
