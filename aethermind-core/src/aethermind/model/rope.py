"""Rotary position embeddings: the frequencies, and their scaling for longer contexts.

Sources: RoFormer (Su et al. 2021); linear interpolation (Chen et al. 2023); NTK-aware scaling (bloc97 2023);
YaRN (Peng et al. 2023); Llama 3.1's scaling by frequency bands (Dubey et al. 2024, arXiv:2407.21783); LongRoPE (Ding
et al. 2024, arXiv:2402.13753).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aethermind.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FREQUENCIES", "KINDS", "RopeConfig", "inverse_frequencies", "read_rope"]

FREQUENCIES = "rope.inv_freq"
"""The name of the constant with the inverse frequencies, in graphs of models with rotary embeddings."""

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "factors")
"""The values of `rope_type` in config.json, and `factors`, which GGUF files have instead of scaling parameters."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The rotary embedding of a model: `kind` is one of KINDS, the other fields are its parameters in config.json.

    `head_dim` is the number of elements of a head that are rotated, which are the first ones. `factors` are divisors of
    the frequency of each pair of elements: those of the kind `factors`, and those of `longrope` for contexts up to the
    original one; `long_factors` are those of `longrope` for longer contexts.
    """

    theta: float
    head_dim: int
    kind: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    @property
    def max_positions(self) -> int:
        """The number of positions for which the frequencies are scaled; 0 without scaling, or if it is unknown."""
        return int(self.factor * self.original_max_position_embeddings)

    @property
    def score_scale(self) -> float:
        """The factor by which YaRN with `mscale_all_dim` multiplies all attention scores (DeepSeek-V2), else 1."""
        return _mscale(self.factor, self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0


def read_rope(
    fields: Mapping[str, Any], *, head_dim: int, max_position_embeddings: int, has_partial_rotary: bool = False
) -> RopeConfig:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (older versions).

    `has_partial_rotary` says whether the architecture can rotate only a part of each head (`partial_rotary_factor`).
    ConfigError names a bad field.
    """
    parameters = _read_parameters(fields)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    kind = "longrope" if kind == "su" else kind  # the name in Phi-3's first configurations
    if kind not in KINDS:
        raise ConfigError(f"rope_type {kind!r} in config.json is not supported. Supported: {', '.join(KINDS)}.")
    partial = parameters.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
    if has_partial_rotary:
        head_dim = _rotary_dim(head_dim, partial)
    elif partial != 1.0:
        raise ConfigError(
            f"partial_rotary_factor {partial!r} in config.json (rope.dimension_count of a .gguf file) is not supported,"
            " since only whole heads can be rotated and this model rotates parts. Take another model."
        )
    if kind == "dynamic" and head_dim == 2:
        raise ConfigError("rope_type 'dynamic' in config.json needs a head_dim above 2, got 2.")
    theta = _number(parameters, "rope_theta", fields.get("rope_theta", 10000.0))
    if kind == "default":
        return RopeConfig(theta, head_dim)
    if kind == "factors":
        return RopeConfig(theta, head_dim, kind, factors=_read_factors(parameters, "factors", head_dim // 2))
    # A value outside the object takes precedence, as in transformers.
    outside = _optional_number(fields, "original_max_position_embeddings")
    original = int(outside or _number(parameters, "original_max_position_embeddings", max_position_embeddings))
    if kind == "longrope":
        short, long = (_read_factors(parameters, name, head_dim // 2) for name in ("short_factor", "long_factor"))
        factor = _number(parameters, "factor", max_position_embeddings / original)
        attention_factor = _optional_number(parameters, "attention_factor")
        return RopeConfig(
            theta, head_dim, kind, factor, original, attention_factor=attention_factor, factors=short, long_factors=long
        )
    return RopeConfig(
        theta,
        head_dim,
        kind,
        _number(parameters, "factor", max_position_embeddings / original if kind == "yarn" else None),
        # Linear and dynamic scaling extend max_position_embeddings; yarn and llama3 extend the original context.
        original if kind in ("yarn", "llama3") else max_position_embeddings,
        _number(parameters, "beta_fast", 32.0),
        _number(parameters, "beta_slow", 1.0),
        _optional_number(parameters, "attention_factor"),
        _optional_number(parameters, "mscale"),
        _optional_number(parameters, "mscale_all_dim"),
        bool(parameters.get("truncate", True)),
        *_read_bands(parameters, kind),
    )


def _read_parameters(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of the rotary embedding in config.json, one object for all layers."""
    names = [name for name in ("rope_parameters", "rope_scaling") if fields.get(name)]
    for name in names:
        if not isinstance(fields[name], Mapping):
            raise ConfigError(f"{name} in config.json should be an object, got {fields[name]!r:.80}.")
    if len(names) == 2 and fields["rope_parameters"] != fields["rope_scaling"]:
        raise ConfigError(
            "config.json has both rope_parameters and rope_scaling, and they differ; "
            "write into rope_parameters what counts, and leave rope_scaling out."
        )
    parameters: Mapping[str, Any] = fields[names[0]] if names else {}
    nested = next((name for name, value in parameters.items() if isinstance(value, Mapping)), None)
    if nested is not None:
        raise ConfigError(
            f"{names[0]} in config.json has parameters for {nested!r:.80} alone; all layers share theirs here."
        )
    if "factor" in parameters and not {"rope_type", "type"} & set(parameters):
        raise ConfigError(f"{names[0]} in config.json has a factor and no rope_type; name one: {', '.join(KINDS)}.")
    return parameters


def _rotary_dim(head_dim: int, partial: Any) -> int:
    """Return the number of rotated elements of a head; ConfigError for a bad `partial_rotary_factor`."""
    is_number = isinstance(partial, int | float) and not isinstance(partial, bool)
    rotary_dim = int(head_dim * partial) if is_number and 0 < partial <= 1 else 0
    if rotary_dim < 2 or rotary_dim % 2:
        raise ConfigError(
            f"partial_rotary_factor {partial!r} in config.json should make an even part of head_dim ({head_dim})."
        )
    return rotary_dim


def _read_factors(parameters: Mapping[str, Any], name: str, num_pairs: int) -> tuple[float, ...]:
    factors = parameters.get(name)
    if not isinstance(factors, list) or len(factors) != num_pairs:
        raise ConfigError(
            f"{name} of the rotary embedding should be a list of {num_pairs} numbers, one for each rotated pair of "
            "elements of a head."
        )
    return tuple(_number({name: factor}, name, None) for factor in factors)


def _read_bands(parameters: Mapping[str, Any], kind: str) -> tuple[float, float]:
    """Return `low_freq_factor` and `high_freq_factor`, the limits of Llama 3.1's frequency bands."""
    low, high = _number(parameters, "low_freq_factor", 1.0), _number(parameters, "high_freq_factor", 4.0)
    if kind == "llama3" and low >= high:
        raise ConfigError(
            f"low_freq_factor ({low:g}) of the rotary embedding in config.json should be below "
            f"high_freq_factor ({high:g})."
        )
    return low, high


def inverse_frequencies(config: RopeConfig, max_model_len: int) -> tuple[np.ndarray[Any, Any], float]:
    """Compute the inverse frequencies, float32 [head_dim/2], and the factor by which cos and sin are multiplied.

    Dynamic NTK scaling and LongRoPE depend on the length of a context. Here they are computed for `max_model_len`, so
    that the rotation of cached keys remains right.
    """
    import numpy as np

    if config.kind == "dynamic":
        return _unscaled(_dynamic_theta(config, max_model_len), config.head_dim), 1.0
    unscaled = _unscaled(config.theta, config.head_dim)
    if config.kind == "factors":
        return unscaled / np.array(config.factors, np.float32), 1.0
    if config.kind == "linear":
        return unscaled / np.float32(config.factor), 1.0
    if config.kind == "yarn":
        return _yarn(config, unscaled)
    if config.kind == "longrope":
        return _longrope(config, max_model_len)
    if config.kind == "llama3":
        return _llama3(config, unscaled), 1.0
    return unscaled, 1.0


def _unscaled(theta: float, head_dim: int) -> Any:
    """Return theta^(-2i/head_dim) for each pair i, in float32 as models are trained."""
    import numpy as np

    return np.float32(1) / _powers(theta, head_dim)


def _powers(theta: float, head_dim: int) -> Any:
    """Return theta^e for each pair i, correctly rounded to float32; the exponents e = 2i / head_dim are float32."""
    import numpy as np

    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (theta ** exponents.astype(np.float64)).astype(np.float32)


def _dynamic_theta(config: RopeConfig, max_model_len: int) -> float:
    """Return the base of dynamic NTK scaling for contexts of `max_model_len` tokens."""
    scale = config.factor * max(max_model_len / config.original_max_position_embeddings, 1) - (config.factor - 1)
    exponent = config.head_dim / (config.head_dim - 2)
    return float(config.theta * scale**exponent)


def _yarn(config: RopeConfig, unscaled: Any) -> tuple[Any, float]:
    """Divide low frequencies by `factor`, leave high ones, and blend linearly in between (YaRN, section 3.2)."""
    import numpy as np

    half = config.head_dim // 2
    low = _correction_dim(config.beta_fast, config)
    high = _correction_dim(config.beta_slow, config)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    span = high - low or 0.001
    ramp = np.clip((np.arange(half, dtype=np.float32) - np.float32(low)) / np.float32(span), 0, 1)
    weight = 1 - ramp.astype(np.float32)  # of the unscaled frequency
    blended = unscaled / np.float32(config.factor) * (1 - weight) + unscaled * weight
    return blended.astype(np.float32), _yarn_attention_factor(config)


def _longrope(config: RopeConfig, max_model_len: int) -> tuple[Any, float]:
    """Divide each frequency by a factor of its own; contexts longer than the original one have other factors."""
    import numpy as np

    original = config.original_max_position_embeddings
    factors = np.array(config.long_factors if max_model_len > original else config.factors, np.float32)
    inv_freq = np.float32(1) / (factors * _powers(config.theta, config.head_dim))
    if config.attention_factor is not None:
        return inv_freq, config.attention_factor
    return inv_freq, math.sqrt(1 + math.log(config.factor) / math.log(original)) if config.factor > 1 else 1.0


def _correction_dim(num_rotations: float, config: RopeConfig) -> float:
    """Return the index of the pair that rotates `num_rotations` times over the original context (YaRN, section 3.2)."""
    positions = config.original_max_position_embeddings
    return config.head_dim * math.log(positions / (num_rotations * 2 * math.pi)) / (2 * math.log(config.theta))


def _yarn_attention_factor(config: RopeConfig) -> float:
    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return _mscale(config.factor, config.mscale) / _mscale(config.factor, config.mscale_all_dim)
    return _mscale(config.factor, 1.0)


def _llama3(config: RopeConfig, unscaled: Any) -> Any:
    """Divide low frequencies by `factor`, leave high ones, and blend in between, as in Llama 3.1.

    Frequencies are low or high by the number of rotations over the original context.
    """
    import numpy as np

    wavelength = np.float32(2 * math.pi) / unscaled
    num_rotations = np.float32(config.original_max_position_embeddings) / wavelength
    low, high = config.low_freq_factor, config.high_freq_factor
    weight = np.clip((num_rotations - np.float32(low)) / np.float32(high - low), 0, 1)  # of the unscaled frequency
    return ((1 - weight) * unscaled / np.float32(config.factor) + weight * unscaled).astype(np.float32)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _number(fields: Mapping[str, Any], name: str, default: float | None) -> float:
    value = fields.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"{name} of the rotary embedding in config.json should be a positive number, got {value!r}.")
    return float(value)


def _optional_number(fields: Mapping[str, Any], name: str) -> float | None:
    return None if fields.get(name) is None else _number(fields, name, None)
