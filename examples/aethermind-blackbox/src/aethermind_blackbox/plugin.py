"""What this package registers: an executor, and the command that reads what it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aethermind.plugins import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_executors(registry: Any) -> None:
    registry.register("blackbox", "aethermind_blackbox.executor:BlackboxExecutor", provider="aethermind-blackbox")


@hookimpl
def register_commands(app: typer.Typer) -> None:
    app.command("blackbox")(_show)


def _show(last: int = 10) -> None:
    """Print the last steps that an engine with `--executor blackbox` ran."""
    from aethermind_blackbox.recorder import path, read

    for step in read(path())[-last:]:
        took = "did not end" if step.seconds is None else f"{step.seconds * 1e3:.2f} ms"
        print(f"step {step.number}: {step.num_tokens} tokens, {step.num_copies} copies, {took}, of {step.request_ids}")
