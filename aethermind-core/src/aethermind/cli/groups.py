"""Options that verbs take by the group: one parameter of a verb stands for every option of its group.

The command line sees each option by itself, where the group's parameter stands; the verb gets the group as one object
and hands it on. Fields are called as in `EngineConfig` and `SamplingParams`, so a group is their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from aethermind.cli import options

__all__ = [
    "EngineOptions",
    "KvCacheOptions",
    "ModelOptions",
    "NumberOptions",
    "SAMPLING_DEFAULTS",
    "SamplingOptions",
    "StepOptions",
    "as_arguments",
    "with_groups",
]

SAMPLING_DEFAULTS: dict[str, Any] = {
    "max_tokens": 200,
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What applies where neither the caller nor the model says anything."""


@dataclass(frozen=True, slots=True)
class NumberOptions:
    """Where a model is computed, and in which numbers."""

    device: options.Device = "auto"
    dtype: options.DType = "auto"
    quantization: options.Quantization = None
    lm_head: options.LmHead = None


@dataclass(frozen=True, slots=True)
class ModelOptions(NumberOptions):
    """The same, what its weights are and what is added to them, and who splits its text."""

    load_format: options.LoadFormat = "auto"
    weight_cache: options.WeightCache = 16.0
    tokenizer: options.Tokenizer = None
    adapters: options.Adapters = None


@dataclass(frozen=True, slots=True)
class KvCacheOptions:
    """How much is remembered, and how."""

    max_model_len: options.MaxModelLen = None
    num_kv_blocks: options.NumKvBlocks = None
    gpu_memory_utilization: options.GpuMemoryUtilization = 0.9
    block_size: options.BlockSize = 16
    kv_cache_dtype: options.KvCacheDType = "auto"


@dataclass(frozen=True, slots=True)
class EngineOptions(KvCacheOptions):
    """The same, and how one request is computed."""

    kv_store: options.KvStore = None
    num_threads: options.NumThreads = None
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512
    fallback: options.Fallback = "warn"
    deterministic: options.Deterministic = False


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step comes about: what drafts tokens and how many, and where it runs."""

    speculative_method: Annotated[
        str | None,
        typer.Option(
            help="Speculative decoding: prompt_lookup, draft (with --draft-model), or a plugin's method.",
            show_default="off",
        ),
    ] = None
    draft_model: Annotated[
        str | None, typer.Option(help="The smaller model for `draft`, with the same vocabulary.")
    ] = None
    num_speculative_tokens: Annotated[
        int, typer.Option(help="Most draft tokens per request and step; fewer if they do not pay.")
    ] = 8
    prompt_lookup_max: Annotated[int, typer.Option(help="Longest n-gram that prompt_lookup searches for.")] = 4
    prompt_lookup_min: Annotated[int, typer.Option(help="Shortest n-gram that prompt_lookup searches for.")] = 2
    executor: Annotated[
        str,
        typer.Option(
            help="Where steps run: auto, inline (this process), multiproc (a process per rank), or a plugin's."
        ),
    ] = "auto"
    tensor_parallel_size: Annotated[
        int,
        typer.Option("--tensor-parallel-size", "-tp", help="Number of ranks that split every layer between them."),
    ] = 1


def _of_the_model(name: str) -> str:
    return f"the model's, or {SAMPLING_DEFAULTS[name]}"


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen, and when an answer ends."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            help="Most tokens to generate; -1 continues to the end of the context.",
            show_default=_of_the_model("max_tokens"),
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "--temp",
            help="Higher is more varied; 0 always takes the most likely token (greedy).",
            show_default=_of_the_model("temperature"),
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(help="Sample from the k most likely tokens; 0 is off.", show_default=_of_the_model("top_k")),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the most likely tokens whose probabilities sum to this; 1 is off.",
            show_default=_of_the_model("top_p"),
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Drop tokens less likely than this fraction of the most likely one; 0 is off.",
            show_default=_of_the_model("min_p"),
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="Above 1 discourages tokens that already occurred in prompt or answer.",
            show_default=_of_the_model("repetition_penalty"),
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Subtracted from the logits of tokens that the answer already holds.", show_default="0"),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="Subtracted once for each time that the answer holds the token.", show_default="0"),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="The same seed gives the same answer; --stats shows the seed of a run.", show_default="random"
        ),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(help="End the answer before this text; may be given several times.")
    ] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Continue past the end-of-text token.")] = False

    def given(self, **more: Any) -> dict[str, Any]:
        """What was given, and `more`; what is wrong with it is said here, before a model is loaded."""
        from aethermind.sampling.params import SamplingParams

        flags = {**asdict(self), "stop": self.stop or None, **more}
        given = {name: value for name, value in flags.items() if value is not None}
        SamplingParams(**given)
        return given


def as_arguments(*groups: Any) -> dict[str, Any]:
    """The options of groups by name."""
    return {name: value for group in groups for name, value in asdict(group).items()}


def with_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb as the command line should see it: instead of each parameter that is a group, the group's options."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for parameter in signature(verb).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY))

    def called(**given: Any) -> None:
        taken = {
            name: kind(**{option.name: given.pop(option.name) for option in fields(kind)})
            for name, kind in groups.items()
        }
        verb(**given, **taken)

    called.__doc__ = verb.__doc__
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _options(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=hints[option.name])
        for option in fields(group)
    ]
