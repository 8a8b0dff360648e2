"""A .gguf file as a model source: its metadata as config.json, its end tokens, its tokenizer and its tensors."""

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
    from aethermind.ops.weight_format import WeightFormat
    from aethermind.plugins.registry import Registry
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["EXPERT_KEYS", "GgufSource", "end_token_ids", "field_keys"]

_T = TypeVar("_T")

_BYTES_PER_TOKEN = 700
"""Memory of a tokenizer of the `tokenizers` library by its number of tokens."""

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
    "yarn_attn_factor": "attention_factor",
}
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
"""The keys under the architecture of a mixture's fields; the widths are read from tensors, since not all files have
them.
"""
_EXPERT_WIDTHS = (
    ("moe_intermediate_size", "blk.0.ffn_gate_exps.weight", True),
    ("moe_intermediate_size", "blk.0.ffn_gate.0.weight", False),
    ("shared_expert_intermediate_size", "blk.0.ffn_gate_shexp.weight", False),
)
"""Fields that are rows of a layer's tensors: their names, and whether these hold all experts."""
_EMBEDDINGS = "token_embd.weight"
_PRESENT = {"attention_bias": "attn_output.bias", "use_qkv_bias": "attn_q.bias"}
"""Fields that say whether layers have a tensor."""
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


def field_keys(family: GgufFamily) -> dict[str, str]:
    """The keys under the architecture of the fields of config.json that a family's files have."""
    return {**_FIELDS, **_OPTIONAL_FIELDS, **family.metadata}


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
        file, family = self._file, self._family
        infos = {name: file.info(name) for name in file.names}
        if not infos:
            raise CheckpointError(f"{self.path} has no tensors: it is a vocabulary without a model.")
        sizes = self._sizes()
        experts = self._experts(infos)
        if "rotary_dim" in sizes and isinstance(sizes["head_dim"], int):
            self._check_number("rotary_dim", sizes["rotary_dim"])
            sizes["partial_rotary_factor"] = sizes.pop("rotary_dim") / max(sizes["head_dim"], 1)
        found = {
            **family.fields,
            **experts,
            **self._rope_scaling(),
            **sizes,
            "architectures": [(family.mixture if experts else None) or family.architecture],
            "vocab_size": infos[_EMBEDDINGS].shape[0] if _EMBEDDINGS in infos else None,
            "tie_word_embeddings": "output.weight" not in infos,
            "dtype": _computed_in(list(infos.values())),
            "eos_token_id": end_token_ids(file.metadata),
            "is_causal": file.metadata.get(f"{self._family_name}.attention.causal", True),
            **{field: _is_in_a_layer(name, infos) for field, name in {**_PRESENT, **family.present}.items()},
        }
        if num_mtp_layers := self._number("nextn_predict_layers"):
            found["num_nextn_predict_layers"] = num_mtp_layers
        found |= {} if family.derive is None else self._of_family(family.derive, found)
        for name, value in sizes.items():
            if found.get(name) is value:
                self._check_number(name, value)
        return found

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

        return gguf_tokenizer(self._file.metadata, self._splits, self.path)

    def tokenizer_bytes(self) -> int:
        from aethermind.text.gguf_tokenizer import is_tokenizer_cached

        metadata = self._file.metadata
        is_mapped = is_tokenizer_cached(metadata, self._splits, self.path)
        return 0 if is_mapped else _BYTES_PER_TOKEN * len(metadata.get("tokenizer.ggml.tokens", ()))

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
        further = family.transforms
        further = self._of_family(further, self.config()) if callable(further) else further
        transforms = {**self._interleaved(), **further}
        return GgufTensors(self._file, names, transforms, self._sizes()["num_hidden_layers"])

    def weight_formats(self) -> dict[str, WeightFormat]:
        tensors = self.weights()
        found = {name: tensors.info(name).weight_format for name in tensors.names}
        return {name: format for name, format in found.items() if format is not None}

    @property
    def architecture(self) -> str:
        """`general.architecture`; ConfigError if the file has none."""
        return self._family_name

    def stored_values(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor's values by GGUF's name, a stack of matrices as one, of a quantised tensor in float32."""
        return self._file.values(name, np.float32)

    @property
    def _splits(self) -> dict[str, SplitRule]:
        """The rules that split text, by their names: the family's own come first."""
        return {**GGUF_SPLITS, **self._family.splits}

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

    @property
    def _keys(self) -> dict[str, str]:
        """The keys under the architecture of fields that are read from one."""
        return field_keys(self._family)

    def _sizes(self) -> dict[str, Any]:
        """The values of `_keys`, with `head_dim` in every case. Layers that draft tokens (MTP) are not counted."""
        found, keys = self._under(f"{self._family_name}."), self._keys
        for name in _FIELDS:
            if keys[name] not in found and name not in self._family.fields:
                raise self._lacks(keys[name])
        sizes = {name: found[key] for name, key in keys.items() if key in found}
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            self._check_number(name, sizes[name])
        sizes.setdefault("head_dim", sizes["hidden_size"] // max(sizes["num_attention_heads"], 1))
        num_layers = sizes["num_hidden_layers"] - self._number("nextn_predict_layers")
        return {**sizes, "num_hidden_layers": num_layers}

    def _of_family(self, function: Callable[[Mapping[str, Any]], _T], fields: Mapping[str, Any]) -> _T:
        """Call a function of the family; ConfigError if a field that it needs is missing or not what it should be."""
        try:
            with np.errstate(all="raise"):
                return function(fields)
        except KeyError as error:
            key = self._keys.get(error.args[0], error.args[0])
            raise self._lacks(key) from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(
                f"{self.path} has metadata under {self._family_name} that do not describe a model ({error}). Convert "
                "the model to GGUF again."
            ) from error

    def _lacks(self, key: str) -> ConfigError:
        return ConfigError(
            f"{self.path} has no {self._family_name}.{key} in its metadata. Convert the model to GGUF again."
        )

    def _number(self, key: str) -> int:
        """A count that most files do not have; ConfigError for what is none."""
        value = self._file.metadata.get(f"{self._family_name}.{key}", 0)
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"{self.path} has {self._family_name}.{key} {value!r:.40}; that is a number.")
        return value

    def _check_number(self, field: str, value: Any) -> None:
        if not isinstance(value, int | float):
            key = f"{self._family_name}.{self._keys[field]}"
            raise ConfigError(f"{self.path} has a {key} that is not one number; that is not supported.")

    def _interleaved(self) -> dict[str, GgufTransform]:
        """How tensors are read whose rows are stored for interleaved rotation."""
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
        """The fields about experts; none for a dense model. Widths are taken from tensors: not all files have them."""
        num_experts = self._number("expert_count")
        if not num_experts:
            return {}
        given = {name: self._file.metadata.get(f"{self._family_name}.{key}") for name, key in _EXPERTS.items()}
        found = {name: value for name, value in given.items() if value is not None}
        for field, name, count in _EXPERT_WIDTHS:
            if name in infos:
                found[field] = infos[name].shape[0] // (num_experts if count else 1)
        return {**found, "num_experts": num_experts}

    def _rope_scaling(self) -> dict[str, Any]:
        prefix = f"{self._family_name}.rope.scaling."
        given = self._under(prefix)
        given.pop("finetuned", None)
        old_factor = self._file.metadata.get(f"{self._family_name}.rope.scale_linear")
        if old_factor is not None and "type" not in given:
            given.setdefault("factor", old_factor)
        for key, value in given.items():
            if not isinstance(value, str | int | float):
                raise ConfigError(f"{self.path} has a {prefix}{key} that is not one value; that is not supported.")
        if set(LONGROPE_FACTORS.values()) <= set(self._file.names):
            return self._longrope(given)
        for key in _NEUTRAL_AT_ONE:
            if given.get(key) == 1.0:
                del given[key]
        # Older files have no type (GGUF specification); like llama.cpp, a factor alone is read as linear scaling.
        if "type" not in given and given.get("factor", 0.0) not in (0.0, 1.0):
            given["type"] = "linear"
        is_scaled = given.get("type", "none") != "none"
        if ROPE_FACTORS in self._file.names:
            if is_scaled:
                raise ConfigError(f"{self.path} has both {ROPE_FACTORS} and {prefix}type, which is not supported.")
            factors = np.asarray(self._file.array(ROPE_FACTORS)).ravel().tolist()
            return {"rope_scaling": {"rope_type": "factors", "factors": factors}}
        if not is_scaled:
            return {}
        given = {key: value for key, value in given.items() if f"rope.scaling.{key}" not in self._keys.values()}
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


def _is_in_a_layer(name: str, infos: Mapping[str, TensorInfo]) -> bool:
    """Whether any layer has a tensor of this name."""
    return any(in_layer(one) == name != one for one in infos)


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
    known = (token_id for token_id, text in zip(control, tokens.select(control), strict=True) if text in _TEXTS)
    return list(dict.fromkeys([*named, *known]))
