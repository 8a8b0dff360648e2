"""`aethermind quantize`: write a model with quantised weights for this and other engines."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.bench.quality import (
    compare_logits,
    single_step_settings,
    tokens_of_text,
    window_logits,
    windows_of_text,
)
from aethermind.cli.flags import with_settings
from aethermind.cli.progress import LoadProgress, open_llm
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.quantize.gguf_model import GgufModel

__all__ = ["EXAMPLES", "quantize"]

EXAMPLES = console.examples(
    "aethermind quantize demo --to q8_0 --quality-tokens 64 --out demo.gguf",
    "aethermind quantize demo --to int4_g32 --imatrix README.md --quality-tokens 0 --out demo-int4",
    "aethermind quantize demo --to fp8 --quality README.md --quality-tokens 64 --json --out demo-fp8",
)

_FORMATS = "int4_g32, int4_g64, int4_g128, int8_channel, fp8, w8a8, …; of GGUF q4_k_m, q6_k, q8_0, …"
_WINDOW = 256
"""Tokens that are computed together for the importance matrix."""


@with_settings
def quantize(
    *,
    model: options.Model = None,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"The format to write: {_FORMATS}.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PATH", help="The folder or .gguf file to write.", show_default=False),
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(
            metavar="TEXT",
            help="A UTF-8 text on which the importance of each input channel is measured (importance matrix).",
            show_default="all channels are equal",
        ),
    ] = None,
    imatrix_tokens: Annotated[int, typer.Option(help="Number of tokens of that text to use.", min=1)] = 32_768,
    quality: Annotated[
        Path | None,
        typer.Option(
            metavar="TEXT",
            help="A UTF-8 text on which the result is compared with the model.",
            show_default="text that the model generates",
        ),
    ] = None,
    quality_tokens: Annotated[
        int, typer.Option(help="Number of tokens to compare; 0 leaves the comparison out.", min=0)
    ] = 512,
    force: Annotated[bool, typer.Option("--force", help="Replace a model at --out.")] = False,
    device: options.Device,
    num_threads: options.NumThreads,
    as_json: options.AsJson = False,
) -> None:
    """Quantise a model's weights and write it for this and other engines.

    A folder of compressed-tensors is written, with the model's tokenizer, which vLLM and transformers read, or a
    .gguf file for llama.cpp. Matrices of linear layers are quantised; in a folder, embeddings, norms, routers
    and the output projection are copied.

    With --imatrix the model first runs over a text. Errors of weights in channels that are active there then
    count more, which helps formats of 4 bits. The result is loaded and compared with the model in float32: the
    mean Kullback-Leibler divergence in nats, its 99th percentile, and how often both have the same most likely
    token.
    """
    from aethermind.checkpoint.compressed_tensors_writer import SCHEMES
    from aethermind.engine.loading.loader import compile_model
    from aethermind.engine.quantize import activation_importance
    from aethermind.engine.quantize.compressed_tensors import CompressedTensorsModel
    from aethermind.engine.quantize.gguf_conversion import plan_gguf
    from aethermind.engine.quantize.gguf_model import GGUF_FORMATS
    from aethermind.engine.quantize.output import check_output, check_space, writing_to
    from aethermind.runtime import Runtime

    to = to.lower()
    is_folder = to in SCHEMES
    if not is_folder and to not in GGUF_FORMATS:
        known = f"{', '.join(SCHEMES)} (compressed-tensors), {', '.join(GGUF_FORMATS)} (GGUF)"
        raise InvalidArgumentError(f"There is no format {to!r} to write. There are {known}.")
    if out is None:
        raise InvalidArgumentError(f"Say where to write the model: --out {'FOLDER' if is_folder else 'FILE.gguf'}.")
    if is_folder == (out.suffix.lower() == ".gguf"):
        kind = (
            "of compressed-tensors: --out {} should be a folder"
            if is_folder
            else "of GGUF: --out {} should end with .gguf"
        )
        raise InvalidArgumentError(f"{to} is a format {kind.format(out)}.")
    if quality_tokens == 1:
        raise InvalidArgumentError("--quality-tokens is 1, and one token predicts nothing. Pass 2 or more, or 0.")
    for text in (imatrix, quality):
        if text is not None and not text.is_file():
            raise InvalidArgumentError(f"There is no text {text}. Pass a UTF-8 file.")
    name, runtime = options.chosen_model(model), Runtime.boot()
    source = runtime.open_source(name)
    check_output(out, source.path, is_forced=force, is_folder=is_folder)
    execution = {"device": device, "num_threads": num_threads}
    compiled = compile_model(runtime, name, **_run_settings(**execution))
    planned: CompressedTensorsModel | GgufModel
    if is_folder:
        planned = CompressedTensorsModel.of(compiled, SCHEMES[to])
    else:
        planned = plan_gguf(compiled, runtime, GGUF_FORMATS[to])
    check_space(out, planned.nbytes)
    if quality is not None and quality_tokens:
        tokens_of_text(source.tokenizer(), quality, quality_tokens, "--quality")
    importance: dict[str, Any] = {}
    if imatrix is not None:
        windows = _windows(compiled, imatrix, imatrix_tokens, "--imatrix")
        with LoadProgress() as loading, LoadProgress("Importance matrix") as progress:
            importance = activation_importance(compiled, windows, progress, loading)
    with writing_to(out, is_folder=is_folder) as partial, LoadProgress("Quantizing") as progress:
        planned.write(partial, importance, num_threads or os.cpu_count() or 1, progress)
    report: dict[str, Any] = {
        "model": str(source.path),
        "out": str(out),
        "format": to,
        "imatrix": None if imatrix is None else str(imatrix),
        "num_matrices": planned.num_matrices,
        "bits_per_weight": 8 * planned.matrix_bytes / planned.num_values,
        "nbytes": planned.nbytes,
        "quality": None,
    }
    if quality_tokens:
        report["quality"] = _quality_of(name, out, quality, quality_tokens, **execution)
    if as_json:
        console.print_json(report)
    else:
        print(_report_text(report))


def _run_settings(**execution: Any) -> dict[str, Any]:
    """Return options of the dense model that computes windows of a text; its packed weights are not cached on disk."""
    _, settings = single_step_settings(num_tokens=_WINDOW, load_format="auto", **execution)
    num_blocks = -(-_WINDOW // settings["block_size"])
    return {
        **settings,
        "dtype": "float32",
        "quantization": "dense",
        "weight_cache": 0.0,
        "num_kv_blocks": num_blocks,
        "max_model_len": None,
        "max_num_batched_tokens": _WINDOW,
        "max_num_seqs": 1,
    }


def _windows(compiled: CompiledModel, text: Path, num_tokens: int, option: str) -> list[list[int]]:
    """Return the first tokens of a text in windows of one step each; InvalidArgumentError if there are none."""
    ids = tokens_of_text(compiled.source.tokenizer(), text, num_tokens, option)
    size = min(_WINDOW, compiled.max_model_len)
    return [ids[begin : begin + size] for begin in range(0, len(ids), size)]


def _quality_of(model: str, out: Path, text: Path | None, num_tokens: int, **execution: Any) -> dict[str, Any]:
    """Compare the logits of the written model with those of the model in float32."""
    window, settings = single_step_settings(num_tokens=num_tokens, load_format="auto", **execution)
    settings["weight_cache"] = 0.0
    with open_llm(model, dtype="float32", quantization="dense", **settings) as dense:
        windows = windows_of_text(dense, text, num_tokens, window)
        expected = window_logits(dense, windows)
    with open_llm(str(out), dtype="float32", **settings) as written:
        found = compare_logits(expected, window_logits(written, windows))
    return {"text": None if text is None else str(text), "num_tokens": len(expected), **asdict(found)}


def _report_text(report: dict[str, Any]) -> str:
    line = (
        f"{report['out']}: {report['num_matrices']} matrices in {report['format']}, {report['bits_per_weight']:.2f} "
        f"bits per weight; {report['nbytes'] / 1e6:,.1f} MB of weights"
    )
    quality = report["quality"]
    if quality is None:
        return line
    text = quality["text"] or "the model's own writing"
    return (
        f"{line}\nOver {quality['num_tokens']} tokens of {text}: KL mean {quality['kl_mean']:.3g}, p99 "
        f"{quality['kl_p99']:.3g}, same top token {quality['top1_agreement']:.1%}"
    )
