"""Weights on disk: named tensors, read strictly, copied by nobody before somebody asks.

TensorSource      what every set of weights can do: names, info, array
SafetensorsFile   one .safetensors file, mapped into memory
Checkpoint        a model directory's weights, in one file or in shards with an index
TorchFile         one .bin, .pt or .pth file, written by torch.save (needs torch)
AdaptedTensors    a checkpoint whose tensors are renamed, transposed or cut as a model wants them
DummyCheckpoint   weights that look random, for trying a model without having it
match_names       the check that a set of weights is exactly what a model needs

GGUF files are read by `gguf` and named by `gguf_names`, which are imported only for such a file.
"""

from __future__ import annotations

from aethermind.checkpoint.adapted import AdaptedTensors, Part
from aethermind.checkpoint.dummy import DummyCheckpoint
from aethermind.checkpoint.name_map import match_names
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.checkpoint.source import StoredTensors, TensorFile, TensorInfo, TensorSource
from aethermind.checkpoint.torch_pickle import TorchFile

__all__ = [
    "AdaptedTensors",
    "Checkpoint",
    "DummyCheckpoint",
    "Part",
    "SafetensorsFile",
    "StoredTensors",
    "TensorFile",
    "TensorInfo",
    "TensorSource",
    "TorchFile",
    "match_names",
]
