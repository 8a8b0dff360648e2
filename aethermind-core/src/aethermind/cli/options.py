"""The options that several verbs share, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

from aethermind import env

__all__ = [
    "AsJson",
    "BlockSize",
    "DType",
    "Device",
    "LmHead",
    "LoadFormat",
    "MaxModelLen",
    "Model",
    "NumKvBlocks",
    "NumThreads",
    "Quantization",
    "chosen_model",
]

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A model directory, or the name of an installed model.",
        show_default="AETHERMIND_MODEL, or demo",
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, numpy, cuda:0, …; see `aethermind doctor`.")]
DType = Annotated[str, typer.Option("--dtype", help="auto (the checkpoint's), float32, bfloat16 or float16.")]
Quantization = Annotated[
    str | None, typer.Option("--quantization", help="Store weights as int8, int4, int2, int1, …, or dense.")
]
LmHead = Annotated[
    str | None,
    typer.Option("--lm-head", help="The same for the matrix that makes logits.", show_default="int8, or more bits"),
]
LoadFormat = Annotated[str, typer.Option("--load-format", help="auto reads the weights, dummy makes random ones.")]
MaxModelLen = Annotated[int | None, typer.Option("--max-model-len", help="Longest context in tokens.")]
NumKvBlocks = Annotated[int | None, typer.Option("--num-kv-blocks", help="Blocks of the KV cache.")]
BlockSize = Annotated[int, typer.Option("--block-size", help="Tokens in a block of the KV cache.")]
NumThreads = Annotated[int | None, typer.Option("--threads", help="Worker threads of the device.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def chosen_model(model: str | None) -> str:
    """The model that `--model`, else AETHERMIND_MODEL, else the installation names."""
    return model or env.model_path() or "demo"
