"""`aethermind generate`: continue a prompt and print the text as it is generated."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind import env
from aethermind.cli import console, options
from aethermind.cli.console import TextWriter
from aethermind.cli.flags import with_settings
from aethermind.cli.progress import PrefillProgress
from aethermind.cli.prompt_text import note_if_prompt_looks_like_model, read_text
from aethermind.cli.settings import (
    SAMPLING_DEFAULTS,
    ExecutionOptions,
    ModelOptions,
    OfflineEngineOptions,
    SamplingOptions,
)
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput
    from aethermind.llm import LLM, ModelInfo
    from aethermind.sampling.params import SamplingParams, StructuredOutputs

__all__ = ["EXAMPLES", "generate", "read_structured_outputs"]


EXAMPLES = console.examples(
    'aethermind generate "Once upon a time"',
    'aethermind generate "The old fox" --max-tokens 80 --temperature 0 --stats',
    'echo "Once upon a time" | aethermind generate --seed 7',
    'aethermind generate "Once upon a time" --max-tokens 40 --json',
    'aethermind generate "Was the fox kind?" --choice yes,no',
)


@with_settings
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; - (or nothing) reads standard input from a pipe.")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a UTF-8 text file.")] = None,
    model: options.Model = None,
    *,
    model_options: ModelOptions,
    sampling: SamplingOptions,
    n: Annotated[int, typer.Option("--n", help="Number of answers, printed when all are complete.")] = 1,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: log probabilities of each token and of this many alternatives.")
    ] = None,
    json_schema: options.JsonSchema = None,
    regex: options.Regex = None,
    choice: options.Choice = None,
    grammar: options.Grammar = None,
    engine: OfflineEngineOptions,
    execution: ExecutionOptions,
    stream: options.Stream,
    stats: options.Stats,
    as_json: options.AsJson = False,
) -> None:
    """Continue a prompt and print the text.

    Defaults called "the model's" come from its generation_config.json.
    """
    from aethermind.cli.progress import open_llm
    from aethermind.sampling.params import SamplingParams, with_defaults

    if logprobs is not None and not as_json:
        raise InvalidArgumentError("--logprobs are a part of what --json prints; add that, or leave them out.")
    text = read_text(prompt, prompt_file, noun="prompt", option="--prompt-file")
    adapter = options.chosen_adapter(model_options.adapters)
    given = sampling.given(
        seed=int.from_bytes(os.urandom(4)) if sampling.seed is None else sampling.seed,
        structured_outputs=read_structured_outputs(json_schema, regex, choice, grammar),
        n=n,
        logprobs=logprobs,
    )
    note_if_prompt_looks_like_model(prompt, "generate", model=model, chosen=options.chosen_model(model))
    with closing(open_llm(options.chosen_model(model), model_options, engine, execution, max_num_seqs=n)) as llm:
        params = SamplingParams(**with_defaults({**SAMPLING_DEFAULTS, **llm.sampling_defaults}, given))
        has_stats = console.is_terminal(sys.stderr) if stats is None else stats
        is_streaming = stream and n == 1 and not as_json
        _generate(llm, text, params, adapter=adapter, is_streaming=is_streaming, has_stats=has_stats, as_json=as_json)


def _generate(
    llm: LLM,
    prompt: str,
    params: SamplingParams,
    *,
    adapter: str = "",
    is_streaming: bool,
    has_stats: bool,
    as_json: bool,
) -> None:
    """Generate and print one request's output. After Ctrl-C the partial output is printed, and the exit code is 130."""
    writer = TextWriter(sys.stdout)
    output: RequestOutput | None = None
    is_interrupted = False
    try:
        with (
            PrefillProgress(llm) as prefill,
            closing(llm.stream(prompt, params, adapter=adapter)) as outputs,
        ):
            for output in outputs:
                prefill.stop()
                if is_streaming:
                    writer.show(output.outputs[0].text)
    except KeyboardInterrupt:
        is_interrupted = True
    if output is not None:
        if as_json:
            console.print_json(as_record(output, params, llm.info))
        else:
            for number, completion in enumerate(output.outputs, 1):
                if has_stats and params.n > 1:
                    console.print_note(f"[{number} of {params.n}]")
                writer.finish(completion.text)
                writer = TextWriter(sys.stdout)
        if has_stats:
            console.print_note(describe(output, params, llm.info))
    if is_interrupted:
        raise typer.Exit(130)


def as_record(output: RequestOutput, params: SamplingParams, info: ModelInfo) -> dict[str, Any]:
    """Return an output for `--json`: the first completion, and with several, all of them in `answers`."""
    completions = [_as_record(completion) for completion in output.outputs]
    return {
        "prompt": output.prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        **completions[0],
        **({"answers": completions} if params.n > 1 else {}),
        "seed": params.seed,
        "metrics": request_metrics(output),
        "model": asdict(info),
    }


def _as_record(completion: CompletionOutput) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason or "abort",
        "stop_reason": completion.stop_reason,
    }
    if completion.logprobs is not None:
        record["logprobs"] = [
            {"token_id": token_id, "logprob": known[token_id].logprob, "candidates": _candidate_records(known)}
            for token_id, known in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
    return record


def _candidate_records(known: dict[int, Logprob]) -> list[dict[str, Any]]:
    return [
        {"token_id": token_id, "text": logprob.decoded_token, "logprob": logprob.logprob, "rank": logprob.rank}
        for token_id, logprob in sorted(known.items(), key=lambda item: item[1].rank)
    ]


def request_metrics(output: RequestOutput) -> dict[str, float | int | None]:
    """Return token counts, seconds and rates of one request; None if it has too few tokens for a value."""
    metrics = output.metrics
    num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
    ttft_s = total_s = rate = None
    if metrics.first_token_s is not None:
        ttft_s = metrics.first_token_s - metrics.arrival_s
        if metrics.finished_s is not None:
            total_s = metrics.finished_s - metrics.arrival_s
            decode_s = metrics.finished_s - metrics.first_token_s
            rate = (num_tokens - 1) / decode_s if num_tokens > 1 and decode_s > 0 else None
    return {
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_cached_tokens": output.num_cached_tokens,
        "num_output_tokens": num_tokens,
        "ttft_s": ttft_s,
        "total_s": total_s,
        "decode_tokens_per_s": rate,
        "num_draft_tokens": metrics.num_draft_tokens,
        "num_accepted_tokens": metrics.num_accepted_tokens,
    }


def describe(output: RequestOutput, params: SamplingParams, info: ModelInfo) -> str:
    """Return the token counts, speed, device and seed of a request as one line."""
    measured = request_metrics(output)
    parts = [f"{measured['num_prompt_tokens']} + {measured['num_output_tokens']} tokens"]
    if measured["num_cached_tokens"]:
        parts.append(f"{measured['num_cached_tokens']} reused")
    if measured["ttft_s"] is not None:
        parts.append(f"first after {measured['ttft_s'] * 1e3:.0f} ms")
    if measured["decode_tokens_per_s"] is not None:
        parts.append(f"then {measured['decode_tokens_per_s']:.1f} tokens/s")
    if measured["num_draft_tokens"]:
        parts.append(f"{measured['num_accepted_tokens']} of {measured['num_draft_tokens']} drafts right")
    parts.append(" ".join([Path(info.model).name, "on", info.device, info.dtype, *info.weight_formats]))
    if not params.is_greedy:
        parts.append(f"seed {params.seed}")
    return "[" + " · ".join(parts) + "]"


def read_structured_outputs(
    json_schema: str | None, regex: str | None, choice: str | None, grammar: Path | None
) -> StructuredOutputs | None:
    """Return the constraint on the output that one of four flags sets; None without any.

    InvalidArgumentError for several flags, for files that cannot be read, and from StructuredOutputs.
    """
    flags = {"--json-schema": json_schema, "--regex": regex, "--choice": choice, "--grammar": grammar}
    given = [flag for flag, value in flags.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} exclude each other; keep one of them.")
    from aethermind.sampling.params import StructuredOutputs

    if json_schema is not None:
        is_file = not json_schema.lstrip().startswith(("{", "[", '"'))
        schema = _read_file(json_schema, "--json-schema") if is_file else json_schema
        return StructuredOutputs(json=schema)
    if regex is not None:
        return StructuredOutputs(regex=regex)
    if choice is not None:
        return StructuredOutputs(choice=choice.split(","))
    return StructuredOutputs(grammar=_read_file(str(grammar), "--grammar"))


def _read_file(path: str, flag: str) -> str:
    return read_text(None, env.expand_home(path), noun=flag.removeprefix("--").replace("-", " "), option=flag)
