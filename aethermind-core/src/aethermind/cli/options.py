"""The options that several verbs share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aethermind import env, log
from aethermind.cli.option_values import device_names, model_names, one_of
from aethermind.errors import InvalidArgumentError

__all__ = [
    "Adapters",
    "ApiKeyToSend",
    "AsJson",
    "BlockSize",
    "ChatTemplate",
    "Choice",
    "DType",
    "Deterministic",
    "Device",
    "Fallback",
    "GpuMemoryUtilization",
    "Grammar",
    "JsonSchema",
    "KvCacheDType",
    "KvStore",
    "LmHead",
    "LoadFormat",
    "MaxModelLen",
    "MaxNumBatchedTokens",
    "MaxNumSeqs",
    "Model",
    "NumKvBlocks",
    "NumThreads",
    "Quantization",
    "Regex",
    "Tokenizer",
    "WeightCache",
    "checked_level",
    "chosen_adapter",
    "chosen_model",
]

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A model directory, a .gguf file, or the name of an installed model.",
        autocompletion=model_names,
        show_default="AETHERMIND_MODEL, or demo",
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", help="auto, cpu, numpy, cuda:0, …; see `aethermind doctor`.", autocompletion=device_names),
]
DType = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="auto (the checkpoint's), float32, bfloat16 or float16.",
        autocompletion=one_of("auto", "float32", "bfloat16", "float16"),
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        "--quantization",
        help="Convert weights to this format while loading: int8, int4, int2, int1, …; dense dequantises them.",
        show_default="the checkpoint's",
    ),
]
LmHead = Annotated[
    str | None,
    typer.Option(
        "--lm-head",
        help="Weight format of the output matrix (lm_head).",
        show_default="as --quantization, but at least int8",
    ),
]
LoadFormat = Annotated[
    str,
    typer.Option(
        "--load-format",
        help="auto reads the weights; dummy makes random ones, to try the speed of a model.",
        autocompletion=one_of("auto", "dummy"),
    ),
]
WeightCache = Annotated[
    float,
    typer.Option("--weight-cache", help="GiB of disk for packed weights, so that later starts are fast; 0 for none."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="PATH|MODEL",
        help="Another tokenizer: a directory, a tokenizer.json, a .gguf file, or the name of a model.",
        show_default="the model's",
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter", metavar="[NAME=]PATH", help="A LoRA adapter for the model: a directory in PEFT's format."
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="FILE|NAME",
        help="A file with a Jinja chat template, or the name of one of the model's templates.",
        show_default="the model's",
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        "-c",
        help="Longest context, prompt and answer together, in tokens.",
        show_default="the model's, or what memory allows",
    ),
]
NumKvBlocks = Annotated[
    int | None,
    typer.Option("--num-kv-blocks", help="Number of blocks in the KV cache.", show_default="what memory allows"),
]
GpuMemoryUtilization = Annotated[
    float,
    typer.Option(
        "--gpu-memory-utilization",
        help="Fraction of a GPU's memory that may be in use, KV cache included; ignored with --num-kv-blocks.",
    ),
]
KvCacheDType = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        help="What the KV cache stores: auto (the dtype of the computation), int8 or fp8. float32, bfloat16 and "
        "float16 are accepted where that is the dtype of the computation.",
        autocompletion=one_of("auto", "float32", "bfloat16", "float16", "int8", "fp8"),
    ),
]
BlockSize = Annotated[int, typer.Option("--block-size", help="Tokens per block of the KV cache.")]
KvStore = Annotated[
    str | None,
    typer.Option(
        "--kv-store",
        metavar="ADDRESS",
        help="Offload the prefix cache to disk:/path?size=10GiB, redis://host:6379/0, host:2GiB or a plugin's store, "
        "where other engines find it.",
    ),
]
MaxNumBatchedTokens = Annotated[
    int, typer.Option("--max-num-batched-tokens", help="Most tokens per step; a longer prompt is computed in chunks.")
]
MaxNumSeqs = Annotated[int, typer.Option("--max-num-seqs", help="Most requests that run at once.")]
Fallback = Annotated[
    str,
    typer.Option(
        "--fallback",
        help="Operators for which the device has no kernel: error, or warn or allow and use the slow reference.",
        autocompletion=one_of("error", "warn", "allow"),
    ),
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Refuse kernels whose results depend on what else is in the batch.")
]
NumThreads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        help="Worker threads of a device that computes on the CPU.",
        show_default="the device's choice",
    ),
]
ApiKeyToSend = Annotated[
    list[str] | None,
    typer.Option("--api-key", help="The server's API key, sent as a bearer token.", show_default="AETHERMIND_API_KEY"),
]
JsonSchema = Annotated[str | None, typer.Option(metavar="FILE|JSON", help="Answer with JSON that matches this schema.")]
Regex = Annotated[str | None, typer.Option(help="Answer with text that matches this regular expression as a whole.")]
Choice = Annotated[str | None, typer.Option(metavar="A,B,…", help="Answer with one of these texts.")]
Grammar = Annotated[
    Path | None, typer.Option(help="Answer with text that follows the grammar in this file (Lark or GBNF).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def checked_level(level: str) -> str:
    """The level of `--log-level`; InvalidArgumentError for one that is none."""
    if level.lower() not in log.LEVELS:
        raise InvalidArgumentError(f"--log-level is {level!r} but should be one of {', '.join(log.LEVELS)}.")
    return level


def chosen_model(model: str | None) -> str:
    """The model that `--model`, else AETHERMIND_MODEL, else the installation names."""
    if isinstance(model, list):  # from a file that is for `serve`
        raise InvalidArgumentError(f"This command takes one of the models {', '.join(model)}; choose it with --model.")
    if model == "":
        raise InvalidArgumentError("--model is empty; name a model directory, a .gguf file or an installed model.")
    return model or env.model_path() or "demo"


def chosen_adapter(adapters: list[str] | None) -> str:
    """The name of the only adapter, by which a command answers that has one request; empty where there is none."""
    from aethermind.engine.config import named_adapters

    names = list(named_adapters(adapters or {}))
    if len(names) > 1:
        raise InvalidArgumentError(
            f"This command answers with one of the adapters {', '.join(names)}; give it alone with --adapter."
        )
    return names[0] if names else ""
