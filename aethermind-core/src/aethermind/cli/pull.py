"""`aethermind pull`: download models of the Hugging Face Hub, or bring them up to date."""

from __future__ import annotations

from typing import Annotated

import typer

from aethermind.cli import console
from aethermind.errors import InvalidArgumentError
from aethermind.model.hub_files import HubName

__all__ = ["EXAMPLES", "pull"]

EXAMPLES = console.examples(
    "aethermind pull Qwen/Qwen2.5-0.5B-Instruct",
    "aethermind pull hf.co/Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
)


def pull(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:QUANTIZATION for one .gguf file of a repository.",
        ),
    ],
    adapter: Annotated[bool, typer.Option("--adapter", help="They are LoRA adapters.")] = False,
) -> None:
    """Download models of the Hugging Face Hub.

    They go to the cache that other programs share, and their paths are printed. Files that are there already are not
    fetched again. Other commands download a model at its first use, but do not look for newer revisions.
    """
    from aethermind.model.hub import download

    names = [_name(text) for text in models]
    for name in names:
        print(download(name, "adapter" if adapter else "model"))


def _name(text: str) -> HubName:
    name = HubName.parse(text)
    if name is None:
        raise InvalidArgumentError(
            f"{text!r} is not a name on the Hugging Face Hub. Write ORG/NAME, or ORG/NAME:Q4_K_M for a .gguf file."
        )
    return name
