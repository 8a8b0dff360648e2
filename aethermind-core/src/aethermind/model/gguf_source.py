"""A .gguf file as a model source: its metadata in the form of config.json, end tokens, tokenizer and tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from aethermind.checkpoint.gguf import GgufStrings
from aethermind.checkpoint.gguf_tensors import (
    LONGROPE_FACTORS,
    ROPE_FACTORS,
    GgufNames,
    GgufParts,
    GgufTensors,
    GgufTransform,
    in_layer,
)
from aethermind.checkpoint.remapped import pair_order
from aethermind.errors import CheckpointError, ConfigError
from aethermind.text.gguf_tokenizer import CONTROL
from aethermind.text.split_patterns import GGUF_SPLITS, SplitRule

if TYPE_CHECKING:
    import numpy.typing as npt

    from aethermind.checkpoint.source import TensorInfo
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.model.hub_arrival import Arrival
    from aethermind.ops.weight_format import WeightFormat
    from aethermind.plugins.registry import Registry
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["EXPERT_KEYS", "GgufSource", "end_token_ids", "field_keys"]

_T = TypeVar("_T")

_TOKENIZER_BYTES_PER_TOKEN = 700
"""Memory of a tokenizer of the `tokenizers` library per token of its vocabulary."""

_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""Required fields of config.json, with GGUF's keys after the architecture's name."""
_OPTIONAL_FIELDS = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rotary_dim": "rope.dimension_count",
}
"""Fields that a file may leave out, likewise."""
_ROPE_SCALING = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attn_factor": "attention_factor",
}
"""GGUF's keys of rotary scaling after `rope.scaling.`, with the fields of config.json's `rope_scaling`."""
_EXPERTS = {
    "num_experts_per_tok": "expert_used_count",
    "norm_topk_prob": "expert_weights_norm",
    "clip_qkv": "attention.clamp_kqv",
}
EXPERT_KEYS = {
    **_EXPERTS,
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
"""Fields of models with experts, with GGUF's keys after the architecture's name.

The widths are read from tensors, since not all files have these keys.
"""
_EXPERT_WIDTHS = (
    ("moe_intermediate_size", "blk.0.ffn_gate_exps.weight", True),
    ("moe_intermediate_size", "blk.0.ffn_gate.0.weight", False),
    ("shared_expert_intermediate_size", "blk.0.ffn_gate_shexp.weight", False),
)
"""Fields whose values are numbers of rows of tensors: (field, tensor, whether the tensor holds all experts)."""
_EMBEDDINGS = "token_embd.weight"
_BIAS_FIELDS = {"attention_bias": "attn_output.bias", "use_qkv_bias": "attn_q.bias"}
"""Fields that say whether layers have biases, with the tensors that these layers have."""
_FACTORS_OF_ONE = ("attn_factor", "yarn_attn_factor", "yarn_ext_factor")
"""Keys of rotary scaling that have no effect if their value is 1; then they are ignored."""
_POOLINGS = {0: None, 1: "mean", 2: "cls", 3: "last"}
"""The poolings of `LLM.embed`, by GGUF's `pooling_type`."""
_GENERATION = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""GGUF's keys after `general.sampling.`, with the fields of generation_config.json."""


def field_keys(family: GgufFamily) -> dict[str, str]:
    """Return the fields of config.json that a family's files have, with GGUF's keys after the architecture's name."""
    return {**_FIELDS, **_OPTIONAL_FIELDS, **family.metadata}


class GgufSource:
    """A .gguf file, or the first of the files of a split model; implements `ModelSource`.

    The file is mapped at the first access.
    """

    def __init__(self, path: Path, families: Registry[GgufFamily], arrival: Arrival | None = None) -> None:
        """Prepare the source; `families` has the description of the file's `general.architecture`.

        `arrival` is the download of the file, if it is not there yet.
        """
        self.path = path
        self._families = families
        self._arrival = arrival

    def config(self) -> dict[str, Any]:
        """Return the metadata in the form of config.json.

        ConfigError for missing or unknown fields, CheckpointError for a broken file or an unsupported quantisation.
        """
        file, family = self._file, self._family
        infos = {name: file.info(name) for name in file.names}
        if not infos:
            raise CheckpointError(f"{self.path} has no tensors: it is a vocabulary without a model.")
        sizes = self._sizes()
        experts = self._experts(infos)
        if "rotary_dim" in sizes and isinstance(sizes["head_dim"], int):
            self._check_number("rotary_dim", sizes["rotary_dim"])
            sizes["partial_rotary_factor"] = sizes.pop("rotary_dim") / max(sizes["head_dim"], 1)
        fields = {
            **family.fields,
            **experts,
            **self._rope_scaling(),
            **sizes,
            "architectures": [(family.mixture if experts else None) or family.architecture],
            "vocab_size": infos[_EMBEDDINGS].shape[0] if _EMBEDDINGS in infos else None,
            "tie_word_embeddings": "output.weight" not in infos,
            "dtype": _compute_dtype(list(infos.values())),
            "eos_token_id": end_token_ids(file.metadata),
            "is_causal": file.metadata.get(f"{self._family_name}.attention.causal", True),
            **{field: _any_layer_has(name, infos) for field, name in {**_BIAS_FIELDS, **family.present}.items()},
        }
        if num_mtp_layers := self._count("nextn_predict_layers"):
            fields["num_nextn_predict_layers"] = num_mtp_layers
        fields |= {} if family.derive is None else self._call_family(family.derive, fields)
        for name, value in sizes.items():
            if fields.get(name) is value:
                self._check_number(name, value)
        return fields

    def generation(self) -> dict[str, Any]:
        """Return `general.sampling.*` by the names of generation_config.json, rounded to the precision of float32."""
        values = {field: self._file.metadata.get(f"general.sampling.{key}") for key, field in _GENERATION.items()}
        return {
            name: float(f"{value:.7g}") if isinstance(value, float) else value
            for name, value in values.items()
            if value is not None
        }

    def json_files(self) -> dict[str, dict[str, Any]]:
        return {}

    def tokenizer(self) -> Tokenizer:
        from aethermind.text.gguf_tokenizer import gguf_tokenizer

        is_cached = self.path.exists()  # the cache depends on the whole file
        return gguf_tokenizer(self._file.metadata, self._splits, self.path, is_cached=is_cached)

    def tokenizer_bytes(self) -> int:
        from aethermind.text.gguf_tokenizer import is_tokenizer_cached

        metadata = self._file.metadata
        is_mapped = is_tokenizer_cached(metadata, self._splits, self.path)
        return 0 if is_mapped else _TOKENIZER_BYTES_PER_TOKEN * len(metadata.get("tokenizer.ggml.tokens", ()))

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
        family = self._family
        names = GgufNames(family.modules, family.outside, family.layers)
        transforms = family.transforms
        transforms = self._call_family(transforms, self.config()) if callable(transforms) else transforms
        transforms = {**self._interleaved_transforms(), **transforms}
        return GgufTensors(self._file, names, transforms, self._sizes()["num_hidden_layers"])

    def weight_formats(self) -> dict[str, WeightFormat]:
        tensors = self.weights()
        formats = {name: tensors.info(name).weight_format for name in tensors.names}
        return {name: format for name, format in formats.items() if format is not None}

    @property
    def architecture(self) -> str:
        """`general.architecture`; ConfigError if the file has none."""
        return self._family_name

    def stored_values(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values by GGUF's name, a stack of matrices as one, of a quantised tensor in float32."""
        return self._file.values(name, np.float32)

    @property
    def _splits(self) -> dict[str, SplitRule]:
        """The rules of pre-tokenization by name; those of the family take precedence."""
        return {**GGUF_SPLITS, **self._family.splits}

    @cached_property
    def _file(self) -> GgufParts:
        return GgufParts(self.path) if self._arrival is None else self._arrival.gguf()

    @property
    def _family_name(self) -> str:
        name = self._file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ConfigError(f"{self.path} has no general.architecture in its metadata. Convert the model again.")
        return name

    @property
    def _family(self) -> GgufFamily:
        return self._families.get(self._family_name)

    @property
    def _keys(self) -> dict[str, str]:
        """The keys, after the architecture's name, of fields whose values are read from the metadata."""
        return field_keys(self._family)

    def _sizes(self) -> dict[str, Any]:
        """Return the fields of `_keys` that the file has, and `head_dim` in every case.

        The number of layers does not include MTP modules.
        """
        metadata, keys = self._metadata_with_prefix(f"{self._family_name}."), self._keys
        for name in _FIELDS:
            if keys[name] not in metadata and name not in self._family.fields:
                raise self._missing_key(keys[name])
        sizes = {name: metadata[key] for name, key in keys.items() if key in metadata}
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            self._check_number(name, sizes[name])
        sizes.setdefault("head_dim", sizes["hidden_size"] // max(sizes["num_attention_heads"], 1))
        num_layers = sizes["num_hidden_layers"] - self._count("nextn_predict_layers")
        return {**sizes, "num_hidden_layers": num_layers}

    def _call_family(self, function: Callable[[Mapping[str, Any]], _T], fields: Mapping[str, Any]) -> _T:
        """Call a function of the family; ConfigError if a field that it needs is missing or has a wrong value."""
        try:
            with np.errstate(all="raise"):
                return function(fields)
        except KeyError as error:
            key = self._keys.get(error.args[0], error.args[0])
            raise self._missing_key(key) from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(
                f"{self.path} has metadata under {self._family_name} that do not describe a model ({error}). Convert "
                "the model to GGUF again."
            ) from error

    def _missing_key(self, key: str) -> ConfigError:
        return ConfigError(
            f"{self.path} has no {self._family_name}.{key} in its metadata. Convert the model to GGUF again."
        )

    def _count(self, key: str) -> int:
        """Return a count that most files do not have, 0 if it is missing; ConfigError if it is not a count."""
        value = self._file.metadata.get(f"{self._family_name}.{key}", 0)
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"{self.path} has {self._family_name}.{key} {value!r:.40}; that is a number.")
        return value

    def _check_number(self, field: str, value: Any) -> None:
        """Raise ConfigError unless the value of a field is one number: files may have an array instead."""
        if not isinstance(value, int | float):
            key = f"{self._family_name}.{self._keys[field]}"
            raise ConfigError(f"{self.path} has a {key} that is not one number; that is not supported.")

    def _interleaved_transforms(self) -> dict[str, GgufTransform]:
        """Return the transforms of tensors whose rows are stored for interleaved rotation."""
        head_dim = self._sizes()["head_dim"]
        transforms = {}
        for name in (f"{module}.{kind}" for module in self._family.interleaved for kind in ("weight", "bias")):
            if f"blk.0.{name}" not in self._file.names:
                continue
            num_rows = self._file.info(f"blk.0.{name}").shape[0]
            if not isinstance(head_dim, int) or head_dim < 2 or head_dim % 2 or num_rows % head_dim:
                self._file.fail(f"has a tensor {name!r} of {num_rows} rows, which are no heads of {head_dim}")
            transforms[name] = GgufTransform(rows=pair_order(num_rows // head_dim, head_dim))
        return transforms

    def _experts(self, infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
        """Return the fields about experts; none for a dense model.

        Intermediate sizes are read from the shapes of tensors, because not all files have them in the metadata.
        """
        num_experts = self._count("expert_count")
        if not num_experts:
            return {}
        values = {name: self._file.metadata.get(f"{self._family_name}.{key}") for name, key in _EXPERTS.items()}
        fields = {name: value for name, value in values.items() if value is not None}
        for field, name, has_all_experts in _EXPERT_WIDTHS:
            if name in infos:
                fields[field] = infos[name].shape[0] // (num_experts if has_all_experts else 1)
        return {**fields, "num_experts": num_experts}

    def _rope_scaling(self) -> dict[str, Any]:
        """Return the field `rope_scaling` of config.json, if the file has scaling; ConfigError for unsupported keys."""
        prefix = f"{self._family_name}.rope.scaling."
        scaling = self._metadata_with_prefix(prefix)
        scaling.pop("finetuned", None)
        old_factor = self._file.metadata.get(f"{self._family_name}.rope.scale_linear")
        if old_factor is not None and "type" not in scaling:
            scaling.setdefault("factor", old_factor)
        for key, value in scaling.items():
            if not isinstance(value, str | int | float):
                raise ConfigError(f"{self.path} has a {prefix}{key} that is not one value; that is not supported.")
        if set(LONGROPE_FACTORS.values()) <= set(self._file.names):
            return self._longrope(scaling)
        for key in _FACTORS_OF_ONE:
            if scaling.get(key) == 1.0:
                del scaling[key]
        # Older files have no type (GGUF specification); like llama.cpp, a factor alone is read as linear scaling.
        if "type" not in scaling and scaling.get("factor", 0.0) not in (0.0, 1.0):
            scaling["type"] = "linear"
        is_scaled = scaling.get("type", "none") != "none"
        if ROPE_FACTORS in self._file.names:
            if is_scaled:
                raise ConfigError(f"{self.path} has both {ROPE_FACTORS} and {prefix}type, which is not supported.")
            factors = np.asarray(self._file.array(ROPE_FACTORS)).ravel().tolist()
            return {"rope_scaling": {"rope_type": "factors", "factors": factors}}
        if not is_scaled:
            return {}
        scaling = {key: value for key, value in scaling.items() if f"rope.scaling.{key}" not in self._keys.values()}
        for key in scaling:
            if key not in _ROPE_SCALING:
                raise ConfigError(f"{self.path} has {prefix}{key} in its metadata, which is not supported.")
        return {"rope_scaling": {_ROPE_SCALING[key]: value for key, value in scaling.items()}}

    def _longrope(self, scaling: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of LongRoPE, whose factors are tensors."""
        factors = {
            field: np.asarray(self._file.array(name)).ravel().tolist() for field, name in LONGROPE_FACTORS.items()
        }
        return {
            "rope_scaling": {"rope_type": "longrope", **factors, "attention_factor": scaling.get("attn_factor")},
            "original_max_position_embeddings": scaling.get("original_context_length"),
        }

    def _metadata_with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return the metadata whose keys have this prefix, by the rest of their keys."""
        metadata = self._file.metadata
        return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def _any_layer_has(name: str, infos: Mapping[str, TensorInfo]) -> bool:
    """Whether any layer has a tensor of this name, such as `attn_q.bias`."""
    return any(in_layer(full_name) == name != full_name for full_name in infos)


def _compute_dtype(tensors: list[TensorInfo]) -> str:
    """Return the dtype of most values; bfloat16 for quantised models, whose norms and biases are always float32."""
    if any(info.weight_format for info in tensors):
        return "bfloat16"
    sizes: Counter[str] = Counter()
    for info in tensors:
        sizes[str(info.dtype)] += info.num_bytes
    return sizes.most_common(1)[0][0]


_END_TOKENS = ("eos", "eot", "eom")
"""The kinds of end tokens in the metadata: `tokenizer.ggml.eos_token_id` and so on."""
_END_TEXTS = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<eos>",
        "<|call|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|im_end|>",
        "<|return|>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts of control tokens that models write only at the end of a text or a turn."""

_END_OF_ANSWER, _END_OF_MESSAGE = "<|return|>", "<|end|>"
"""In the vocabulary of gpt-oss the second ends a message, of which an answer has several. Elsewhere it ends a turn."""


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Return the ids of the tokens that end the output: those in the metadata, then control tokens of known texts.

    The metadata have at most one token of each kind, while generation_config.json may list several, of which the
    converter writes the first. The others are recognised by their texts.
    """
    in_metadata = [metadata[key] for kind in _END_TOKENS if (key := f"tokenizer.ggml.{kind}_token_id") in metadata]
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, GgufStrings) or not isinstance(types, np.ndarray):  # the file has no tokenizer
        return in_metadata
    control = np.flatnonzero(types[: len(tokens)] == CONTROL).tolist()
    texts = list(tokens.select(control))
    end_texts = _END_TEXTS - {_END_OF_MESSAGE} if _END_OF_ANSWER in texts else _END_TEXTS
    by_text = (token_id for token_id, text in zip(control, texts, strict=True) if text in end_texts)
    return list(dict.fromkeys([*in_metadata, *by_text]))
