"""`aethermind bench kv-reuse`: similarity of layers' keys and values, and the loss when layers share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.bench.quality import diverge, single_step_settings, windows_of_text
from aethermind.cli.flags import with_settings
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["EXAMPLES", "kv_reuse"]

EXAMPLES = console.examples(
    "aethermind bench kv-reuse --tokens 64",
    "aethermind bench kv-reuse --reuse 3:2 --reuse 2:1,3:1 --tokens 64 --json",
    "aethermind bench kv-reuse --reuse 3:2 --tokens 64 --distill 128",
)


@with_settings
def kv_reuse(
    reuse: Annotated[
        list[str] | None,
        typer.Option(
            metavar="READER:SOURCE[,...]", help="Layers (from 0) that read the keys and values of an earlier layer."
        ),
    ] = None,
    *,
    model: options.Model = None,
    load_format: options.LoadFormat,
    text: options.MeasuredText = None,
    tokens: options.MeasuredTokens = 512,
    distill: Annotated[
        int, typer.Option(help="Number of further tokens to fit the readers to; 0 for none.", min=0)
    ] = 0,
    device: options.Device,
    num_threads: options.NumThreads,
    as_json: options.AsJson = False,
) -> None:
    """Compare the keys and values of layers, and measure what a model loses when layers share them.

    Reports the mean cosine similarity of keys, and of values, between each layer and the one before,
    over every token and head of the text (--json: between all pairs of layers). For every --reuse, the
    readers attend to the keys and values of their sources, and the report has the Kullback-Leibler
    divergence from the unchanged model and how often both have the same most likely token. Without
    --reuse, each layer in turn reads the one before. Everything is computed in float32.

    With --distill, the readers' query and output projections are fitted by least squares to the
    unchanged model's activations on a further text, and the report shows divergence and agreement after the fit.
    """
    import numpy as np

    from aethermind.cli.progress import open_llm
    from aethermind.engine.kv_reuse.sharing import kv_similarity

    window, settings = single_step_settings(device, load_format, num_threads, tokens)
    with open_llm(options.chosen_model(model), dtype="float32", **settings) as llm:
        engine = llm.engine
        num_layers = engine.compiled.cache_spec.num_layers
        windows = windows_of_text(llm, text, tokens, window)
        training_windows = windows_of_text(llm, text, tokens + distill, window)[len(windows) :] if distill else []
        if distill and not training_windows:
            raise InvalidArgumentError("The text ends before there is anything to --distill from. Lower --tokens.")
        pairs = [kv_similarity(engine, ids) for ids in windows]
        keys, values = np.average(np.array(pairs), axis=0, weights=[len(ids) for ids in windows])
        wanted = [_sources(pair) for pair in reuse or ()] or [{layer: layer - 1} for layer in range(1, num_layers)]
        losses = _losses(engine, wanted, windows, training_windows)
    report = {
        "model": llm.info.model,
        "num_tokens": sum(map(len, windows)),
        "num_distilled_tokens": sum(map(len, training_windows)),
        "key_cosines": keys.tolist(),
        "value_cosines": values.tolist(),
        "reuse": losses,
    }
    if as_json:
        console.print_json(report)
    else:
        _print_report(report)


def _losses(
    engine: Engine,
    wanted: Sequence[Mapping[int, int]],
    windows: Sequence[Sequence[int]],
    training_windows: Sequence[Sequence[int]],
) -> list[dict[str, Any]]:
    """For each choice of sources by reader, the divergence on `windows` from the unchanged model, for JSON.

    With `training_windows` also that of readers which are fitted to them.
    """
    import numpy as np

    from aethermind.engine.kv_reuse import distillation
    from aethermind.engine.kv_reuse.sharing import KVReuse
    from aethermind.engine.text_passes.text_pass import text_logits

    expected = np.concatenate([text_logits(engine, ids) for ids in windows])

    def divergence(shared: KVReuse) -> dict[str, Any]:
        return asdict(diverge(expected, np.concatenate([shared.logits(ids) for ids in windows])))

    losses = []
    for sources in wanted:
        loss: dict[str, Any] = {"sources": sources, **divergence(KVReuse(engine, sources))}
        if training_windows:
            parameters = distillation.distill(engine, sources, training_windows)
            loss["distilled"] = divergence(KVReuse(engine, sources, parameters))
        losses.append(loss)
    return losses


def _sources(option: str) -> dict[int, int]:
    """Parse `READER:SOURCE` pairs that are separated by commas."""
    try:
        return {int(reader): int(source) for reader, source in (pair.split(":") for pair in option.split(","))}
    except ValueError:
        raise InvalidArgumentError(
            f"--reuse {option!r} should name layers as READER:SOURCE, such as 3:2 or 2:1,3:1."
        ) from None


def _print_report(report: dict[str, Any]) -> None:
    print(f"{report['model']}, {report['num_tokens']} tokens")
    keys, values = report["key_cosines"], report["value_cosines"]
    neighbours = [
        (f"{layer - 1}, {layer}", f"{keys[layer - 1][layer]:.3f}", f"{values[layer - 1][layer]:.3f}")
        for layer in range(1, len(keys))
    ]
    print(console.columns([("layers", "cosine of keys", "of values"), *neighbours]))
    rows = []
    for result in report["reuse"]:
        readers = ", ".join(f"{reader} reads {source}" for reader, source in result["sources"].items())
        rows.append((readers, *_figures(result)))
        if "distilled" in result:
            rows.append(("  distilled", *_figures(result["distilled"])))
    print(console.columns([("layers that share", "KL mean", "KL p99", "same top token"), *rows]))


def _figures(cost: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{cost['kl_mean']:.3g}", f"{cost['kl_p99']:.3g}", f"{cost['top1_agreement']:.1%}"
