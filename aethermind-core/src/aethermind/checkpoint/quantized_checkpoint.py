"""The reader of a quantised checkpoint, by the method that its quantization_config names."""

from __future__ import annotations

from typing import Any

from aethermind.checkpoint.quantized_tensors import quantization_method
from aethermind.checkpoint.source import StoredTensors

__all__ = ["open_quantized"]

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
            from aethermind.checkpoint.fp4 import Mxfp4Checkpoint

            return Mxfp4Checkpoint(stored, where)
        case "fp8" | "fbgemm_fp8":
            from aethermind.checkpoint.fp8 import Fp8Checkpoint, read_block_size

            return Fp8Checkpoint(stored, read_block_size(described, where), where)
        case "compressed-tensors":
            from aethermind.checkpoint.compressed_tensors import open_compressed_tensors

            return open_compressed_tensors(stored, described, where)
        case "modelopt":
            from aethermind.checkpoint.compressed_tensors import open_modelopt

            return open_modelopt(stored, described, where)
        case "hqq":
            from aethermind.checkpoint.hqq import HqqCheckpoint

            return HqqCheckpoint(stored, where)
        case "torchao":
            from aethermind.checkpoint.compressed_tensors import open_torchao

            return open_torchao(stored, where)
        case "bitsandbytes":
            from aethermind.checkpoint.bitsandbytes import BitsAndBytesCheckpoint

            return BitsAndBytesCheckpoint(stored, where)
        case _:
            from aethermind.checkpoint.gptq_awq import PackedCheckpoint, read_packing

            return PackedCheckpoint(stored, read_packing(described, where), where)
