"""`aethermind share-kv`: writes a checkpoint whose layers share keys and values, and prints what it loses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aethermind.errors import InvalidArgumentError

__all__ = ["share_kv"]


def share_kv(
    model: Annotated[str, typer.Argument(help="A model's name, or its directory.")],
    directory: Annotated[Path, typer.Argument(help="The directory to write; it must not exist.")],
    reuse: Annotated[
        str, typer.Option(metavar="READER:SOURCE[,...]", help="Layers (from 0), each with the earlier one it reads.")
    ],
    fit: Annotated[int, typer.Option(min=0, help="Tokens to fit the readers' projections to; 0 for none.")] = 1024,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to measure on.")] = 512,
    text: Annotated[
        Path | None, typer.Option(help="A UTF-8 text to measure on and then to fit to; else the model writes one.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device to run on.")] = "cpu",
) -> None:
    """Convert a model to one in which layers read the keys and values of an earlier layer.

    Readers need no memory in the KV cache. Their query and output projections are fitted to a text by
    least squares. Prints perplexity, and how often both models have the same most likely token.
    """
    from aethermind import Runtime
    from aethermind_sharedkv.convert import convert, measure, open_model, windows

    sources = _sources(reuse)
    given = None if text is None else text.read_text(encoding="utf-8")
    path = Runtime.boot().models.locate(model)
    with open_model(path, device=device) as original:
        pieces = windows(original, given, tokens + fit)
        num_measured = -(-tokens // len(pieces[0])) if pieces else 0
        measured, fitted_to = pieces[:num_measured], pieces[num_measured:]
        if not measured or (fit and not fitted_to):
            raise InvalidArgumentError("The text ends before there are tokens to fit to; lower --tokens or --fit.")
        before = measure(original, measured)
        before_bytes = original.info.kv_cache_bytes / original.info.num_kv_blocks
        convert(path, directory, sources, original, fitted_to)
    with open_model(directory, device=device) as shared:
        after = measure(shared, measured)
        after_bytes = shared.info.kv_cache_bytes / shared.info.num_kv_blocks
    print(f"{directory}: the KV cache of a token takes {after_bytes / before_bytes:.0%} of that of {model}.")
    print(
        f"On {sum(map(len, measured))} tokens: perplexity {after.perplexity:.3f}, before {before.perplexity:.3f}; the "
        f"same most likely token at {after.agreement(before):.1%}."
    )


def _sources(text: str) -> dict[int, int]:
    """Parse `READER:SOURCE` pairs that are separated by commas."""
    try:
        return {int(reader): int(source) for reader, source in (pair.split(":") for pair in text.split(","))}
    except ValueError:
        raise InvalidArgumentError(
            f"--reuse {text!r} should name layers as READER:SOURCE, such as 3:2 or 2:1,3:1."
        ) from None
