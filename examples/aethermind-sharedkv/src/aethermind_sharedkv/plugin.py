"""What this package registers: the architecture, and the command that converts a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aethermind.plugins import hookimpl

if TYPE_CHECKING:
    import typer

_PROVIDER = "aethermind-sharedkv"


@hookimpl
def register_architectures(registry: Any) -> None:
    registry.register("SharedKVForCausalLM", "aethermind_sharedkv.architecture:SHARED_KV", provider=_PROVIDER)


@hookimpl
def register_commands(app: typer.Typer) -> None:
    from aethermind_sharedkv.command import share_kv

    app.command("share-kv")(share_kv)
