"""Reads the configuration of Mamba 2 mixers from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import DecoderConfig, positive_int, positive_number, read_numbers
from aethermind.model.blocks import Mamba2Config

__all__ = ["read_mixer", "read_time_limits"]


def read_mixer(fields: Mapping[str, Any], config: DecoderConfig) -> Mamba2Config:
    """Read the mixers of Falcon-H1; ConfigError names a bad field."""
    expanded = positive_int(fields, "mamba_expand", default=2) * config.hidden_size
    inner = positive_int(fields, "mamba_d_ssm", default=expanded)
    defaults = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}
    heads, groups, state_size, kernel = (positive_int(fields, name, default=size) for name, size in defaults.items())
    is_auto = fields.get("mamba_d_head", "auto") == "auto"
    head_dim = inner // heads if is_auto else positive_int(fields, "mamba_d_head")
    if heads * head_dim != inner or heads % groups:
        raise ConfigError(
            f"mamba_n_heads ({heads}) times mamba_d_head ({head_dim}) in config.json should be mamba_d_ssm ({inner}), "
            f"and mamba_n_heads a multiple of mamba_n_groups ({groups})."
        )
    dt_min, dt_max = read_time_limits(fields)
    input_factor = positive_number(fields, "ssm_in_multiplier", default=1.0)
    z, x, b, c, dt = (input_factor * factor for factor in read_numbers(fields, "ssm_multipliers", 5, default=1.0))
    return Mamba2Config(
        config.hidden_size,
        heads,
        head_dim,
        state_size,
        groups,
        kernel,
        config.rms_norm_eps,
        dt_min=dt_min,
        dt_max=dt_max,
        has_in_bias=bool(fields.get("mamba_proj_bias", False)),
        has_conv_bias=bool(fields.get("mamba_conv_bias", True)),
        has_out_bias=bool(fields.get("projectors_bias", False)),
        has_norm=bool(fields.get("mamba_rms_norm", False)),
        norm_before_gate=bool(fields.get("mamba_norm_before_gate", True)),
        multipliers=(z, x, b, c, dt),
    )


def read_time_limits(fields: Mapping[str, Any]) -> tuple[float, float]:
    """Read `time_step_limit` of config.json; return the lower and the upper limit of time steps, 0 for no upper limit.

    JSON has no infinity, which files write as Infinity or as an object: an upper limit that is not a finite number is
    no limit.
    """
    limits: Any = fields.get("time_step_limit") or (0.0, None)
    if not isinstance(limits, list | tuple) or len(limits) != 2 or not isinstance(limits[0], int | float):
        raise ConfigError(f"time_step_limit in config.json should be a list of two numbers, got {limits!r:.80}.")
    lower, upper = limits
    has_upper = isinstance(upper, int | float) and upper < float("inf")
    return float(lower), float(upper) if has_upper else 0.0
