"""Checkpoints of torchao in safetensors: FP8 and integers of 8 bits, in torchao's names.

    X._weight_qdata, X._weight_scale, X._weight_zero_point      a matrix `X.weight`. They are read as FP8 (`checkpoint
                    .fp8`) or as integers with a scale for each tensor, row or group (`checkpoint.compressed_tensors`)

Files say in their metadata which class each tensor had. Classes whose values are packed for one kernel are refused:
Int4Tensor, Int4TilePackedTo4dTensor and others. Scales of activations are not used.
"""

from __future__ import annotations

from aethermind.checkpoint.compressed_tensors import IntegerCheckpoint
from aethermind.checkpoint.fp8 import Fp8Checkpoint, has_fp8
from aethermind.checkpoint.remapped import AdaptedTensors, TensorSlice
from aethermind.checkpoint.source import StoredTensors
from aethermind.errors import CheckpointError, ConfigError

__all__ = ["open_torchao"]

_DATA = "._weight_qdata"
_PARTS = {_DATA: ".weight", "._weight_scale": ".weight_scale", "._weight_zero_point": ".weight_zero_point"}
_PRE_SCALE = "._weight_act_pre_scale"
_TYPES = ("F8_E4M3", "I8")


def open_torchao(stored: StoredTensors, where: str) -> StoredTensors:
    """Return a view of the checkpoint with quantised matrices; `where` names the model in messages.

    ConfigError for a class of tensors that is not read, CheckpointError if there are no quantised matrices, or parts
    of one do not fit.
    """
    names = stored.names
    modules = [name.removesuffix(_DATA) for name in names if name.endswith(_DATA)]
    if not modules:
        raise CheckpointError(
            f"{where} says that it is quantised by torchao, and has no tensor *{_DATA}. Take the model in safetensors "
            "that torchao 0.14 or later wrote; take quantization_config out of config.json if its weights are not "
            "quantised."
        )
    for module in modules:
        data, scales = (stored.info(f"{module}{part}") for part in (_DATA, "._weight_scale"))
        is_packed = len(data.shape) == 2 == len(scales.shape) and scales.shape[0] not in (1, data.shape[0])
        is_in_blocks = data.dtype_name == "F8_E4M3"
        if data.dtype_name not in _TYPES or (is_packed and not is_in_blocks) or f"{module}{_PRE_SCALE}" in names:
            raise ConfigError(
                f"{where!r} has {module}{_DATA} of {data.dtype_name} {list(data.shape)} with scales "
                f"{list(scales.shape)}, which torchao packed for one of its kernels. Take the model quantised to FP8 "
                "or int8, or unquantised with a format as quantization."
            )
    parts = {name: end for name in names for end in _PARTS if name.endswith(end)}
    renamed = {name.removesuffix(end) + _PARTS[end]: TensorSlice(name) for name, end in parts.items()}
    others = {name: TensorSlice(name) for name in names if "._weight_" not in name}
    view: StoredTensors = AdaptedTensors(stored, {**others, **renamed}, only_parts=True)
    is_mixed = any(stored.info(f"{module}{_DATA}").dtype_name == "I8" for module in modules)
    if has_fp8(view):
        view = Fp8Checkpoint(view, None, where)
    return IntegerCheckpoint(view, (), where) if is_mixed else view
