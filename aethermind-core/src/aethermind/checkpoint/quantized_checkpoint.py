"""Opens a quantised checkpoint with the reader of the method that its quantization_config names."""

from __future__ import annotations

from typing import Any

from aethermind.checkpoint.quantized_tensors import quantization_method
from aethermind.checkpoint.source import StoredTensors

__all__ = ["open_quantized"]

_COMPRESSED_TENSORS_PACKINGS = ("llm_compressor", "fp8")
"""Parts of `packing_format` with which auto-round writes tensors like those of compressed-tensors."""


def open_quantized(stored: StoredTensors, config: Any, model_name: str) -> StoredTensors:
    """Return a view of a checkpoint whose quantised matrices are QuantizedWeights.

    `config` is its quantization_config; `model_name` is for messages.

    Raises:
        ConfigError: the method or one of its settings is not known.
        CheckpointError: the tensors are not those of the method.
    """
    from aethermind.checkpoint.tensor_core_int4 import MarlinCheckpoint, is_marlin

    method = quantization_method(config, model_name)
    packing = str(config.get("packing_format")).lower()
    if method == "auto-round" and any(name in packing for name in _COMPRESSED_TENSORS_PACKINGS):
        method = "compressed-tensors"
    match method:
        case "mxfp4":
            from aethermind.checkpoint.float_formats import Mxfp4Checkpoint

            return Mxfp4Checkpoint(stored, model_name)
        case "fp8" | "fbgemm_fp8":
            from aethermind.checkpoint.float_formats import Fp8Checkpoint, read_block_size

            return Fp8Checkpoint(stored, read_block_size(config, model_name), model_name)
        case "compressed-tensors":
            from aethermind.checkpoint.compressed_tensors import open_compressed_tensors

            return open_compressed_tensors(stored, config, model_name)
        case "modelopt":
            from aethermind.checkpoint.compressed_tensors import open_modelopt

            return open_modelopt(stored, config, model_name)
        case "hqq":
            from aethermind.checkpoint.hqq import HqqCheckpoint

            return HqqCheckpoint(stored, model_name)
        case "torchao":
            from aethermind.checkpoint.compressed_tensors import open_torchao

            return open_torchao(stored, model_name)
        case "bitsandbytes":
            from aethermind.checkpoint.bitsandbytes import BitsAndBytesCheckpoint

            return BitsAndBytesCheckpoint(stored, model_name)
        case "gptq" if is_marlin(config):
            return MarlinCheckpoint(stored, config, model_name)
        case _:
            from aethermind.checkpoint.gptq_awq import PackedCheckpoint, read_packing

            return PackedCheckpoint(stored, read_packing(config, model_name), model_name)
