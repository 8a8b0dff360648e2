"""The method that a quantization_config names: which tool wrote a quantised checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError

__all__ = ["METHODS", "quantization_method"]

METHODS = ("gptq", "awq", "auto-round", "compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4", "bitsandbytes", "modelopt",
           "hqq", "torchao")  # fmt: skip
"""The methods whose checkpoints are read."""

_OTHER_NAMES = {"intel/auto-round": "auto-round", "auto_round": "auto-round"}


def quantization_method(described: Any, where: str) -> str:
    """Return the method of a quantization_config, one of `METHODS`; ConfigError for another one, or for none."""
    if not isinstance(described, Mapping):
        raise ConfigError(f"The quantization_config of {where!r} should be an object, not {type(described).__name__}.")
    given = described.get("quant_method") or _unnamed_method(described)
    method = _OTHER_NAMES.get(given.lower(), given.lower()) if isinstance(given, str) else given
    if method not in METHODS:
        how = "in a way that its quantization_config does not name" if given is None else f"by {given!r:.80}"
        raise ConfigError(
            f"{where!r} is quantised {how}, which cannot be read. Use the unquantised model and pass a format as "
            f"quantization, or take it quantised by {', '.join(METHODS[:-1])} or {METHODS[-1]}, or as .gguf."
        )
    return str(method)


def _unnamed_method(described: Mapping[str, Any]) -> str | None:
    """Infer the method from fields that only one tool writes, for a config without quant_method; None if unknown."""
    if described.get("load_in_8bit") or described.get("load_in_4bit"):
        return "bitsandbytes"
    if "config_groups" in described:
        return "compressed-tensors"
    if "quant_algo" in described:
        return "modelopt"
    # AWQ's quant_config.json has w_bit; AutoGPTQ's quantize_config.json has bits.
    return "awq" if "w_bit" in described else "gptq" if "bits" in described else None
