"""The reader of a quantised checkpoint, by the method that its quantization_config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.checkpoint.source import StoredTensors
from aethermind.errors import ConfigError

__all__ = ["METHODS", "open_quantized", "quantization_method"]

METHODS = ("gptq", "awq", "auto-round", "compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4", "bitsandbytes", "modelopt")
"""The methods whose checkpoints are read."""

_OTHER_NAMES = {"intel/auto-round": "auto-round", "auto_round": "auto-round"}
_LAYOUT_OF_COMPRESSED_TENSORS = ("llm_compressor", "fp8")
"""Parts of the names of auto-round's packings whose tensors are those of compressed-tensors."""


def open_quantized(stored: StoredTensors, described: Any, where: str) -> StoredTensors:
    """Return a view of a checkpoint in which the matrices that `described`, its quantization_config, tells of are
    QuantizedWeights; `where` names the model in messages.

    Raises:
        ConfigError: the method or one of its settings is not known.
        CheckpointError: the tensors are not those of the method.
    """
    method = quantization_method(described, where)
    packing = str(described.get("packing_format")).lower()
    if method == "auto-round" and any(name in packing for name in _LAYOUT_OF_COMPRESSED_TENSORS):
        method = "compressed-tensors"
    match method:
        case "mxfp4":
            from aethermind.checkpoint.mxfp4 import Mxfp4Checkpoint

            return Mxfp4Checkpoint(stored, where)
        case "fp8" | "fbgemm_fp8":
            from aethermind.checkpoint.fp8 import Fp8Checkpoint, read_block_size

            return Fp8Checkpoint(stored, read_block_size(described, where), where)
        case "compressed-tensors":
            from aethermind.checkpoint.compressed_tensors import open_compressed_tensors

            return open_compressed_tensors(stored, described, where)
        case "modelopt":
            from aethermind.checkpoint.modelopt import open_modelopt

            return open_modelopt(stored, described, where)
        case "bitsandbytes":
            from aethermind.checkpoint.bitsandbytes import BitsAndBytesCheckpoint

            return BitsAndBytesCheckpoint(stored, where)
        case _:
            from aethermind.checkpoint.gptq_awq import PackedCheckpoint
            from aethermind.checkpoint.packing import read_packing

            return PackedCheckpoint(stored, read_packing(described, where), where)


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
