"""What was said on the command line, as against what a file, a variable or the default says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

__all__ = ["is_flag"]


def is_flag(ctx: typer.Context, name: str | None) -> bool:
    """Whether the parameter was given on the command line."""
    source = None if name is None else ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
