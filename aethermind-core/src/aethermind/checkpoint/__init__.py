"""Weights on disk: named tensors, validated strictly and mapped into memory without copies.

TensorSource      the interface of every set of weights: names, info, array
SafetensorsFile   one .safetensors file, mapped into memory
Checkpoint        a model directory's weights, in one file or in shards with an index
TorchFile         one .bin, .pt or .pth file, written by torch.save (needs torch)
AdaptedTensors    a checkpoint whose tensors are renamed, transposed or sliced to match a model's graph
StackedTensors    a checkpoint in which a layer's experts are one matrix per projection, and rows of heads are taken
DummyCheckpoint   random-looking weights, for running a model without its checkpoint
match_names       the check that a set of weights is exactly what a model needs

GGUF files are read by `gguf` and `gguf_tensors`, quantised checkpoints by `quantized_checkpoint`, LoRA adapters by
`lora_adapter`; these are imported only for such a file.
"""

from __future__ import annotations

from aethermind.checkpoint.dummy import DummyCheckpoint
from aethermind.checkpoint.expert_stacks import FusedSlice, HeadSlice, StackedTensors, TensorStack, expert_stacks
from aethermind.checkpoint.remapped import (
    AdaptedTensors,
    TensorSlice,
    interleaved_heads,
    renamed_prefixes,
    rows_by_head,
)
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.checkpoint.source import StoredTensors, TensorFile, TensorInfo, TensorSource, match_names
from aethermind.checkpoint.torch_pickle import TorchFile
from aethermind.plugins.compatibility import deprecated_names

__getattr__ = deprecated_names(__name__, {"Part": ("TensorSlice", TensorSlice)})

__all__ = [
    "AdaptedTensors",
    "Checkpoint",
    "DummyCheckpoint",
    "FusedSlice",
    "HeadSlice",
    "SafetensorsFile",
    "StackedTensors",
    "StoredTensors",
    "TensorFile",
    "TensorInfo",
    "TensorSlice",
    "TensorSource",
    "TensorStack",
    "TorchFile",
    "expert_stacks",
    "interleaved_heads",
    "match_names",
    "renamed_prefixes",
    "rows_by_head",
]
