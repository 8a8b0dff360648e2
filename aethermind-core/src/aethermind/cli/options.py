"""The options that several verbs share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aethermind import env
from aethermind.errors import InvalidArgumentError

__all__ = [
    "ApiKeyToSend",
    "AsJson",
    "BlockSize",
    "Choice",
    "DType",
    "Deterministic",
    "Device",
    "DraftModel",
    "Executor",
    "Fallback",
    "Grammar",
    "IgnoreEos",
    "JsonSchema",
    "KvCacheDType",
    "KvStore",
    "LmHead",
    "LoadFormat",
    "MaxModelLen",
    "MaxNumBatchedTokens",
    "MaxNumSeqs",
    "MaxTokens",
    "MinP",
    "Model",
    "NumKvBlocks",
    "NumSpeculativeTokens",
    "NumThreads",
    "PromptLookupMax",
    "PromptLookupMin",
    "Quantization",
    "Regex",
    "RepetitionPenalty",
    "SAMPLING_DEFAULTS",
    "Seed",
    "SpeculativeMethod",
    "Stop",
    "SwapSpace",
    "Temperature",
    "TopK",
    "TopP",
    "chosen_model",
    "given_sampling",
]

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A model directory, a .gguf file, or the name of an installed model.",
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
KvCacheDType = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        help="Store keys and values as computed (auto; float32, bfloat16 or float16 insist on it), or as int8 or fp8.",
    ),
]
SwapSpace = Annotated[
    float, typer.Option("--swap-space", help="GiB of host memory for requests that give way in a full KV cache.")
]
KvStore = Annotated[
    str | None,
    typer.Option(
        "--kv-store",
        metavar="ADDRESS",
        help="Share keys and values: disk:/path?size=10GiB, redis://host:6379/0, host:2GiB, or a plugin's name.",
    ),
]
BlockSize = Annotated[int, typer.Option("--block-size", help="Tokens in a block of the KV cache.")]
MaxNumBatchedTokens = Annotated[
    int, typer.Option("--max-num-batched-tokens", help="The most tokens in a step, a piece of a prompt included.")
]
MaxNumSeqs = Annotated[int, typer.Option("--max-num-seqs", help="The most requests running at once.")]
Fallback = Annotated[
    str, typer.Option("--fallback", help="Operators without a kernel of the device: error, warn or allow.")
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Refuse kernels whose results depend on the batch.")
]
SpeculativeMethod = Annotated[
    str | None,
    typer.Option(
        "--speculative-method",
        help="Draft tokens for the model to check: prompt_lookup, draft, or a plugin's.",
        show_default="no drafts",
    ),
]
DraftModel = Annotated[
    str | None, typer.Option("--draft-model", help="The smaller model that drafts, of the same tokens.")
]
NumSpeculativeTokens = Annotated[
    int, typer.Option("--num-speculative-tokens", help="The most drafts in a step; fewer where they do not pay.")
]
PromptLookupMax = Annotated[int, typer.Option("--prompt-lookup-max", help="Tokens that prompt_lookup looks for first.")]
PromptLookupMin = Annotated[int, typer.Option("--prompt-lookup-min", help="The fewest that it looks for.")]
Executor = Annotated[str, typer.Option("--executor", help="Where steps run: inline, in this process, or a plugin's.")]
NumThreads = Annotated[int | None, typer.Option("--threads", help="Worker threads of the device.")]
SAMPLING_DEFAULTS: dict[str, Any] = {
    "max_tokens": 200,
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What applies where neither the caller nor the model says anything."""


def _default(name: str) -> str:
    return f"the model's, or {SAMPLING_DEFAULTS[name]}"


MaxTokens = Annotated[int | None, typer.Option(help="The most tokens to write.", show_default=_default("max_tokens"))]
ApiKeyToSend = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key", help="What to send as a bearer token, the first of some.", show_default="AETHERMIND_API_KEY"
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Divides the logits; 0 always takes the likeliest token.", show_default=_default("temperature")),
]
TopK = Annotated[
    int | None, typer.Option(help="Choose among the k likeliest tokens; 0 is off.", show_default=_default("top_k"))
]
TopP = Annotated[
    float | None,
    typer.Option(help="Choose among the likeliest tokens of this total probability.", show_default=_default("top_p")),
]
MinP = Annotated[
    float | None,
    typer.Option(help="Drop tokens below this fraction of the likeliest one.", show_default=_default("min_p")),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 1 discourages tokens already there.", show_default=_default("repetition_penalty")),
]
Seed = Annotated[int | None, typer.Option(help="Repeat a run; --stats shows the seed.", show_default="random")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end-of-text token.")]
JsonSchema = Annotated[
    str | None, typer.Option(metavar="FILE|JSON", help="Answer with JSON that this schema describes.")
]
Regex = Annotated[str | None, typer.Option(help="Answer with text that this regular expression matches.")]
Choice = Annotated[str | None, typer.Option(metavar="A,B,…", help="Answer with one of these.")]
Grammar = Annotated[Path | None, typer.Option(help="Answer by the grammar in this file (Lark or GBNF).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def chosen_model(model: str | None) -> str:
    """The model that `--model`, else AETHERMIND_MODEL, else the installation names."""
    if isinstance(model, list):  # from a file that is for `serve`
        raise InvalidArgumentError(f"This command takes one of the models {', '.join(model)}; choose it with --model.")
    return model or env.model_path() or "demo"


def given_sampling(**flags: Any) -> dict[str, Any]:
    """The sampling flags that were given; what is wrong with them is said here, before a model is loaded."""
    from aethermind.sampling.params import SamplingParams

    given = {name: value for name, value in flags.items() if value is not None}
    SamplingParams(**given)
    return given
