"""The configuration of a decoder, with the field names of Hugging Face's config.json.

Both the field names of transformers 5 and those of older versions are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aethermind.errors import ConfigError
from aethermind.hal.dtype import DType
from aethermind.model.rope import FREQUENCIES, RopeConfig, read_rope

__all__ = [
    "DecoderConfig",
    "frequencies_name",
    "periodic_layer_types",
    "positive_int",
    "positive_number",
    "read_attention_layers",
    "read_decoder_config",
    "read_numbers",
]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The configuration that decoders have in common.

    `sliding_windows[i]` is the window of layer i in tokens, 0 for full attention. `eos_token_ids` may contain ids
    beyond the vocabulary. If layers have different rotary embeddings, `layer_ropes` has one for each layer, None for a
    layer without positions; otherwise `layer_ropes` is None, and all layers have `rope`.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    dtype: DType
    sliding_windows: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    layer_ropes: tuple[RopeConfig | None, ...] | None = None

    def rope_of(self, layer: int) -> RopeConfig | None:
        """Return the rotary embedding of a layer; None for a layer whose queries and keys are not rotated."""
        return self.rope if self.layer_ropes is None else self.layer_ropes[layer]


def read_decoder_config(
    raw: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    has_rotary: bool = True,
    has_partial_rotary: bool = False,
    activations: Collection[str] = ("silu", "swish"),
    names: Mapping[str, str] = MappingProxyType({}),
) -> DecoderConfig:
    """Read a decoder's config.json, whose contents are `raw`. `defaults` are the architecture's values of fields.

    `has_rotary` says whether positions are rotary embeddings, which need an even head_dim. `has_partial_rotary` says
    whether the architecture can rotate only a part of each head (`partial_rotary_factor`). `activations` are the values
    of hidden_act that the architecture computes. `names` maps fields to the names that the architecture's config.json
    has for them, such as `{"rms_norm_eps": "layer_norm_eps"}`. ConfigError names a bad field as config.json does.
    """
    fields = {**defaults, **{name: value for name, value in raw.items() if value is not None}}
    renamed = {name: name_in_file for name, name_in_file in names.items() if name_in_file in fields}
    fields |= {name: fields[name_in_file] for name, name_in_file in renamed.items()}
    try:
        return _read(fields, has_rotary, has_partial_rotary, activations)
    except ConfigError as error:
        message = re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), str(error))
        raise ConfigError(message) from None


def _read(
    fields: Mapping[str, Any], has_rotary: bool, has_partial_rotary: bool, activations: Collection[str]
) -> DecoderConfig:
    hidden_size = positive_int(fields, "hidden_size")
    heads = positive_int(fields, "num_attention_heads")
    kv_heads = positive_int(fields, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(
            f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads}) in config.json."
        )
    if "head_dim" not in fields and hidden_size % heads:
        raise ConfigError(
            f"hidden_size ({hidden_size}) is not a multiple of num_attention_heads ({heads}) in config.json."
        )
    head_dim = positive_int(fields, "head_dim", default=hidden_size // heads)
    if has_rotary and not has_partial_rotary and head_dim % 2:
        raise ConfigError(f"head_dim ({head_dim}) in config.json is odd; rotary embeddings need an even one.")
    activation = fields.get("hidden_act", next(iter(activations)))
    if not isinstance(activation, str) or activation not in activations:
        raise ConfigError(
            f"hidden_act {activation!r} in config.json is not supported by this architecture; it computes "
            f"{next(iter(activations))}."
        )
    if not fields.get("is_causal", True):
        raise ConfigError(
            "This model attends in both directions (is_causal is false), and this architecture computes causal "
            "attention only. Take another model for embeddings."
        )
    num_layers = positive_int(fields, "num_hidden_layers")
    max_positions = positive_int(fields, "max_position_embeddings")
    return DecoderConfig(
        hidden_size=hidden_size,
        intermediate_size=positive_int(fields, "intermediate_size"),
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=positive_int(fields, "vocab_size"),
        max_position_embeddings=max_positions,
        rms_norm_eps=_positive_float(fields, "rms_norm_eps", 1e-6),
        rope=read_rope(
            fields,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            has_partial_rotary=has_partial_rotary,
        ),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        dtype=_read_dtype(fields),
        sliding_windows=_read_sliding_windows(fields, num_layers),
        eos_token_ids=_read_token_ids(fields.get("eos_token_id")),
    )


def frequencies_name(config: DecoderConfig, rope: RopeConfig) -> str:
    """Return the name of the constant with the inverse frequencies of one of a model's rotary embeddings."""
    others = [other for other in dict.fromkeys(config.layer_ropes or ()) if other not in (None, config.rope)]
    return FREQUENCIES if rope == config.rope else f"{FREQUENCIES}.{1 + others.index(rope)}"


def positive_int(fields: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    """Read a field that must be a positive integer; ConfigError names it and its value."""
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ConfigError(f"{name} in config.json should be a positive integer, got {value!r}.")
    return value


def positive_number(fields: Mapping[str, Any], name: str, *, default: float | None = None) -> float:
    """Read a field that must be a positive number; ConfigError names it and its value."""
    value: Any = default if fields.get(name) is None else fields[name]
    if not _is_number(value) or value <= 0:
        raise ConfigError(f"{name} in config.json should be a positive number, got {value!r:.80}.")
    return float(value)


def read_numbers(fields: Mapping[str, Any], name: str, count: int, *, default: float) -> tuple[float, ...]:
    """Read a field that must be a list of `count` numbers, by default all `default`; ConfigError names it."""
    values = [default] * count if fields.get(name) is None else fields[name]
    if not isinstance(values, list | tuple) or len(values) != count or not all(map(_is_number, values)):
        raise ConfigError(f"{name} in config.json should be a list of {count} numbers, got {values!r:.80}.")
    return tuple(map(float, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def periodic_layer_types(fields: Mapping[str, Any], period: int, *, default: int | None = None) -> list[str]:
    """Return the `layer_types` of a model whose every `period`-th layer has full attention, the others a window.

    `default` is the architecture's number of layers, which is used if config.json has none.
    """
    layers = range(1, 1 + positive_int(fields, "num_hidden_layers", default=default))
    return ["sliding_attention" if layer % period else "full_attention" for layer in layers]


def read_attention_layers(kinds: Any, other: str, num_layers: int) -> tuple[bool, ...]:
    """Read the `layer_types` of a hybrid model; return whether each layer is `full_attention` instead of `other`.

    ConfigError if `kinds` is not a list of these two names, one for each layer.
    """
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= {other, "full_attention"}:
        raise ConfigError(
            f"layer_types in config.json should list {other} or full_attention for each of the num_hidden_layers "
            f"({num_layers}) layers."
        )
    return tuple(kind == "full_attention" for kind in kinds)


def _positive_float(fields: Mapping[str, Any], name: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(f"{name} in config.json should be a small positive number, got {value!r}.")
    return float(value)


def _read_dtype(fields: Mapping[str, Any]) -> DType:
    candidates = (fields.get("dtype"), fields.get("torch_dtype"))
    name = next((name for name in candidates if name not in (None, "auto")), "float32")
    dtype = DType.parse(str(name).removeprefix("torch."))
    if not dtype.is_floating:
        raise ConfigError(f"dtype {name!r} in config.json is not a type that models compute in.")
    return dtype


def _read_sliding_windows(fields: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the window of each layer, 0 for none, from `layer_types` or the older fields.

    The older fields are `use_sliding_window` with `max_window_layers`, the number of first layers without a window.
    """
    window = fields.get("sliding_window")
    layer_types = fields.get("layer_types")
    if layer_types is None:
        if not fields.get("use_sliding_window", False):
            return (0,) * num_layers
        first = fields.get("max_window_layers", num_layers)
        if isinstance(first, bool) or not isinstance(first, int):
            raise ConfigError(f"max_window_layers in config.json should be an integer, got {first!r}.")
        layer_types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise ConfigError(f"layer_types in config.json should list num_hidden_layers ({num_layers}) entries.")
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConfigError(
            f"layer_types in config.json holds {sorted(map(str, unknown))[0]!r}; "
            "full_attention and sliding_attention are known."
        )
    if "sliding_attention" not in layer_types:
        return (0,) * num_layers
    size = positive_int(fields, "sliding_window") if window is not None else None
    if size is None:
        raise ConfigError("config.json asks for sliding attention but gives no sliding_window.")
    return tuple(size if kind == "sliding_attention" else 0 for kind in layer_types)


def _read_token_ids(value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
        raise ConfigError(f"eos_token_id in config.json should be a token id or a list of them, got {value!r}.")
    return tuple(ids)
