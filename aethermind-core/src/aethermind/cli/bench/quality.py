"""`aethermind bench quality`: how much a weight format or KV cache dtype changes the logits of a text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import with_settings
from aethermind.cli.prompt_text import read_text
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from aethermind.llm import LLM
    from aethermind.text.tokenizer import Tokenizer

__all__ = [
    "Divergence",
    "EXAMPLES",
    "compare_logits",
    "quality",
    "single_step_settings",
    "tokens_of_text",
    "window_logits",
    "windows_of_text",
]

EXAMPLES = console.examples(
    "aethermind bench quality --tokens 64",
    "aethermind bench quality --quantization int8 int4 int4_zp --tokens 128",
    "aethermind bench quality --kv-cache-dtype int8 --tokens 64",
    "aethermind bench quality int4 --lm-head-quantization dense --text README.md --json",
)

_WINDOW = 128
_SAMPLED_PROMPT = "Once upon a time"
_BLOCK_SIZE = 16


@with_settings
def quality(
    formats: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FORMAT]...", help="Weight formats to measure; without any, all of them."),
    ] = None,
    first_formats: Annotated[
        list[str] | None, typer.Option("--quantization", help="Weight format to measure, before those of FORMAT.")
    ] = None,
    *,
    lm_head_quantization: options.LmHeadQuantization,
    kv_cache_dtype: options.KvCacheDType,
    model: options.Model = None,
    load_format: options.LoadFormat,
    text: options.MeasuredText = None,
    tokens: options.MeasuredTokens = 512,
    device: options.Device,
    dtype: options.DType = "float32",
    num_threads: options.NumThreads,
    as_json: options.AsJson = False,
) -> None:
    """Compare the logits of quantised weights with those of the unquantised model in float32.

    With --kv-cache-dtype int8 or fp8, the quantisation of the KV cache is measured; weights then remain
    dense, unless formats are named.

    Reports the mean Kullback-Leibler divergence in nats, its 99th percentile, and how often both models
    have the same most likely token. Every token of the text counts once, in windows of 128 tokens.
    Without --text, the text is sampled from the dense model, so random weights give random tokens.
    """
    from aethermind.runtime import Runtime

    runtime = Runtime.boot()
    wanted = list(dict.fromkeys([*(first_formats or ()), *(formats or ())]))
    if not wanted:
        wanted = ["dense"] if kv_cache_dtype != "auto" else runtime.weight_formats.names()
    for name in (*wanted, *([lm_head_quantization] if lm_head_quantization else ())):
        runtime.weight_formats.get(name)
    window, settings = single_step_settings(device, load_format, num_threads, tokens)
    settings["runtime"] = runtime
    name = options.chosen_model(model)
    with _open(name, dtype="float32", quantization="dense", **settings) as dense:
        windows = windows_of_text(dense, text, tokens, window)
        expected = window_logits(dense, windows)
        report: dict[str, Any] = {
            "model": dense.info.model,
            "device": dense.info.device,
            "dtype": dtype,
            "kv_cache_dtype": kv_cache_dtype,
            "text": None if text is None else str(text),
            "num_tokens": len(expected),
            "formats": [],
        }
    for weight_format in wanted:
        with _open(
            name,
            dtype=dtype,
            quantization=weight_format,
            lm_head_quantization=lm_head_quantization,
            kv_cache_dtype=kv_cache_dtype,
            **settings,
        ) as tested:
            report["formats"].append({"quantization": weight_format, **_measure_format(tested, expected, windows)})
    if as_json:
        console.print_json(report)
    else:
        _print_report(report)


def single_step_settings(
    device: str, load_format: str, num_threads: int | None, num_tokens: int
) -> tuple[int, dict[str, Any]]:
    """Return the number of tokens per window, and options of an LLM that computes a window's logits in one step."""
    window = min(_WINDOW, num_tokens)
    return window, {
        "device": device,
        "load_format": load_format,
        "num_threads": num_threads,
        "block_size": _BLOCK_SIZE,
        "max_model_len": window + 1,
        "num_kv_blocks": -(-(window + 1) // _BLOCK_SIZE),
        "max_num_seqs": window,
        "max_num_batched_tokens": window,
        "fallback": "allow",
    }


@dataclass(frozen=True, slots=True)
class Divergence:
    """The difference of predictions from a reference: KL divergence in nats per row, and top-1 agreement."""

    kl_mean: float
    kl_p99: float
    top1_agreement: float


def compare_logits(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> Divergence:
    """Compare logits [rows, V] with expected ones: KL(expected ‖ actual), and agreement of the most likely token."""
    import numpy as np

    divergences = []
    for left, right in zip(expected, actual, strict=True):
        p, q = _log_softmax(left), _log_softmax(right)
        divergences.append(max(0.0, float(np.exp(p) @ (p - q))))
    agreement = np.mean(expected.argmax(-1) == actual.argmax(-1))
    return Divergence(float(np.mean(divergences)), float(np.quantile(divergences, 0.99)), float(agreement))


def _log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    shifted = logits.astype(np.float64) - logits.max()
    result: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum())
    return result


def _open(model: str, **settings: Any) -> LLM:
    from aethermind.cli.progress import open_llm

    return open_llm(model, **settings)


def windows_of_text(llm: LLM, text: Path | None, num_tokens: int, window: int) -> list[list[int]]:
    """Return `num_tokens` tokens of a text in windows of at most `window` tokens; None samples them from the model."""
    from aethermind.sampling.params import SamplingParams

    if text is not None:
        ids = tokens_of_text(llm.tokenizer, text, num_tokens, "--text")
        return [ids[begin : begin + window] for begin in range(0, len(ids), window)]
    prompt_ids = llm.tokenizer.encode(_SAMPLED_PROMPT)[: window - 1]
    found = []
    for seed, begin in enumerate(range(0, num_tokens, window)):
        size = min(window, num_tokens - begin)
        params = SamplingParams(temperature=1.0, max_tokens=max(size - len(prompt_ids), 1), ignore_eos=True, seed=seed)
        (output,) = llm.generate({"prompt_token_ids": prompt_ids}, params)
        found.append([*prompt_ids, *output.outputs[0].token_ids][:size])
    return found


def tokens_of_text(tokenizer: Tokenizer, text: Path, num_tokens: int, option: str) -> list[int]:
    """Return the first tokens of a text file; InvalidArgumentError, which names `option`, if it has none."""
    ids = tokenizer.encode(read_text(None, text, noun="text", option=option))
    if not ids:
        raise InvalidArgumentError(f"Text {text} is empty. Pass another one.")
    return ids[:num_tokens]


def window_logits(llm: LLM, windows: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """Compute the logits of all tokens of all windows, float32 [tokens, V]."""
    import numpy as np

    from aethermind.engine.text_pass import text_logits

    return np.concatenate([text_logits(llm.engine, ids) for ids in windows])


def _measure_format(llm: LLM, expected: np.ndarray[Any, Any], windows: Sequence[Sequence[int]]) -> dict[str, Any]:
    from aethermind.engine.loading.weight_formats import format_uses

    uses = [console.weight_format_record(use) for use in format_uses(llm.engine.compiled)]
    num_values = sum(use["num_values"] for use in uses)
    return {
        "weight_formats": uses,
        "bits_per_weight": 8 * sum(use["nbytes"] for use in uses) / num_values if num_values else None,
        **asdict(compare_logits(expected, window_logits(llm, windows))),
    }


def _print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['model']} on {report['device']} ({report['dtype']}) against dense float32, {report['num_tokens']} "
        f"tokens of {report['text'] or 'its own writing'}"
    )
    header = ("format", "matrices", "bits/weight", "KL mean", "KL p99", "same top token")
    kv_cache = "" if report["kv_cache_dtype"] == "auto" else f", KV {report['kv_cache_dtype']}"
    rows = [header, *(_row(record, kv_cache) for record in report["formats"])]
    first, *rest = console.columns(rows).splitlines()
    print("\n".join([console.style(first, "bold", sys.stdout), *rest]))


def _row(record: dict[str, Any], kv_cache: str) -> tuple[str, ...]:
    bits = record["bits_per_weight"]
    return (
        f"{record['quantization']}{kv_cache}",
        ", ".join(f"{use['num_parameters']} {use['name']}" for use in record["weight_formats"]) or "all dense",
        "-" if bits is None else f"{bits:.2f}",
        f"{record['kl_mean']:.3g}",
        f"{record['kl_p99']:.3g}",
        f"{record['top1_agreement']:.1%}",
    )
