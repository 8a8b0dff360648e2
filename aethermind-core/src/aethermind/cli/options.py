"""Options that several commands share, their checks, and the model and adapter that they select."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from aethermind import env, log
from aethermind.cli.flags import model_names
from aethermind.cli.settings import BenchSettings, ChatSettings, OutputSettings, ServedModelName
from aethermind.config.section import settings_of
from aethermind.engine.config import EngineConfig
from aethermind.errors import InvalidArgumentError

__all__ = [
    "Adapters",
    "ApiKeyToSend",
    "AsJson",
    "Batch",
    "BlockSize",
    "ChatTemplate",
    "Choice",
    "DType",
    "Deterministic",
    "Device",
    "Fallback",
    "Grammar",
    "History",
    "JsonSchema",
    "KvCacheDType",
    "LmHeadQuantization",
    "LoadFormat",
    "MaxNumBatchedTokens",
    "MaxNumSeqs",
    "MaxPrefillChunk",
    "MeasuredText",
    "MeasuredTokens",
    "Model",
    "NumThreads",
    "OutputTokens",
    "Plot",
    "PromptTokens",
    "Regex",
    "Repeat",
    "ServedName",
    "Stats",
    "Stream",
    "System",
    "Tokenizer",
    "check_numbers",
    "check_sizes",
    "checked_level",
    "chosen_adapter",
    "chosen_model",
]

_ENGINE = settings_of(EngineConfig)
_CHAT = settings_of(ChatSettings)
_OUTPUT = settings_of(OutputSettings)
_BENCH = settings_of(BenchSettings)

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A model's name on the Hugging Face Hub (ORG/NAME[@REVISION][:QUANTIZATION]) or among the installed "
        "ones, a directory, or a .gguf file.",
        autocompletion=model_names,
        show_default="AETHERMIND_MODEL, or demo",
    ),
]
Device = Annotated[str, _ENGINE["device"]]
DType = Annotated[str, _ENGINE["dtype"]]
LmHeadQuantization = Annotated[str | None, _ENGINE["lm_head_quantization"]]
LoadFormat = Annotated[str, _ENGINE["load_format"]]
Tokenizer = Annotated[str | None, _ENGINE["tokenizer"]]
Adapters = Annotated[list[str] | None, _ENGINE["adapters"]]
BlockSize = Annotated[int | None, _ENGINE["block_size"]]
KvCacheDType = Annotated[str, _ENGINE["kv_cache_dtype"]]
NumThreads = Annotated[int | None, _ENGINE["num_threads"]]
MaxNumSeqs = Annotated[int, _ENGINE["max_num_seqs"]]
MaxNumBatchedTokens = Annotated[int, _ENGINE["max_num_batched_tokens"]]
MaxPrefillChunk = Annotated[int | None, _ENGINE["max_prefill_chunk"]]
Fallback = Annotated[str, _ENGINE["fallback"]]
Deterministic = Annotated[bool, _ENGINE["deterministic"]]
System = Annotated[str | None, _CHAT["system"]]
ChatTemplate = Annotated[str | None, _CHAT["chat_template"]]
History = Annotated[bool, _CHAT["history"]]
Stream = Annotated[bool, _OUTPUT["stream"]]
Stats = Annotated[bool | None, _OUTPUT["stats"]]
ServedName = Annotated[str | None, settings_of(ServedModelName)["served_model_name"]]
PromptTokens = Annotated[int, _BENCH["prompt_tokens"]]
OutputTokens = Annotated[int, _BENCH["output_tokens"]]
Batch = Annotated[int, _BENCH["batch"]]
Repeat = Annotated[int, _BENCH["repeat"]]
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
MeasuredText = Annotated[
    Path | None, typer.Option(help="A UTF-8 text to measure on.", show_default="text that the model generates")
]
MeasuredTokens = Annotated[int, typer.Option(help="Number of tokens to measure on.", min=2)]
Plot = Annotated[Path | None, typer.Option(help="Draw the run to this .svg or .png file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def checked_level(level: str) -> str:
    """Return the value of `--log-level`; InvalidArgumentError for a level that does not exist."""
    if level.lower() not in log.LEVELS:
        raise InvalidArgumentError(f"--log-level is {level!r} but should be one of {', '.join(log.LEVELS)}.")
    return level


def check_numbers(**values: float | None) -> None:
    """Raise InvalidArgumentError for the first given value that is not a number above 0 and below 1e9."""
    for name, value in values.items():
        if value is not None and not 0 < value < 1e9:
            option = name.replace("_", "-")
            raise InvalidArgumentError(f"--{option} is {value} but must be a number above 0 and below 1e9.")


def check_sizes(**values: int | None) -> None:
    """Raise InvalidArgumentError for the first given value that is not an integer from 1 to 2147483647."""
    for name, value in values.items():
        if value is not None and not 0 < value < 2**31:
            option = name.replace("_", "-")
            raise InvalidArgumentError(f"--{option} is {value} but must be an integer from 1 to 2147483647.")


def chosen_model(model: str | None) -> str:
    """Return the value of `--model`, else of AETHERMIND_MODEL, else `demo`; InvalidArgumentError for several models."""
    if isinstance(model, list):  # from a configuration file for `serve`
        raise InvalidArgumentError(f"This command takes one of the models {', '.join(model)}; choose it with --model.")
    if model == "":
        raise InvalidArgumentError("--model is empty; name a model, a model directory or a .gguf file.")
    return model or env.model_path() or "demo"


def chosen_adapter(adapters: Sequence[str] | None) -> str:
    """Return the name of the only adapter, for a command that runs one request; empty without an adapter."""
    from aethermind.engine.config import named_adapters

    names = list(named_adapters(adapters or {}))
    if len(names) > 1:
        raise InvalidArgumentError(
            f"This command answers with one of the adapters {', '.join(names)}; give it alone with --adapter."
        )
    return names[0] if names else ""
