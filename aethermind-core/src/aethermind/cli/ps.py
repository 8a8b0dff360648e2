"""`aethermind ps`: the models that a running server has loaded."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.cli.openai_client import check_key, choose_model, client_options, connection_error
from aethermind.errors import SettingsError
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    import httpx

__all__ = ["EXAMPLES", "ps"]

_TIMEOUT_S = 10.0

EXAMPLES = console.examples(
    "aethermind ps --url http://127.0.0.1:8000", "aethermind ps --url http://127.0.0.1:8000 --all --json"
)


def ps(
    url: Annotated[str, typer.Option("--url", help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="AETHERMIND_API_KEY", show_envvar=False, help="The server's API key."),
    ] = None,
    lists_all: Annotated[bool, typer.Option("--all", "-a", help="List models that are not loaded, too.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """List the models that a running server has loaded."""
    models = [model for model in _models(url, api_key) if model.get("parent") is None]
    shown = [model for model in models if lists_all or model["status"]["value"] not in ("unloaded", "failed")]
    if as_json:
        console.print_json({"models": shown})
    elif shown:
        rows = [("name", "state", "memory", "loaded at", "idle", "requests", "loads")]
        print(console.columns([*rows, *map(_row, shown)], indent=""))
    else:
        print("No model is loaded. `aethermind ps --all` lists those that can be.")


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    status = model["status"]
    loaded_at, idle_s, progress = status["loaded_at"], status["idle_s"], status["progress"]
    return (
        str(model["id"]),
        status["value"] if progress is None else f"{status['value']} {progress:.0%}",
        console.quantity(status["memory_bytes"], "B") if status["memory_bytes"] else "-",
        "-" if loaded_at is None else f"{datetime.fromtimestamp(loaded_at):%Y-%m-%d %H:%M:%S}",
        "-" if idle_s is None else f"{idle_s:.0f} s",
        str(status["num_requests"]),
        str(status["num_loads"]),
        status["error"] or "",
    )


def _models(url: str, api_key: str | None) -> list[dict[str, Any]]:
    """Return the entries of /v1/models.

    InvalidArgumentError if the server cannot be reached; SettingsError if it is no AetherMind server.
    """
    try:
        import httpx
    except ImportError as error:
        raise SettingsError(f"`ps` needs {error.name}. Run `{pip_install_command('aethermind[serve]')}`.") from None
    client: httpx.Client
    with closing(httpx.Client(**client_options(url, api_key))) as client:
        try:
            response = client.get("/v1/models", timeout=_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise connection_error(client, error) from None
        check_key(client, response)
        entry = choose_model(client, response, None)
        if "value" not in (entry.get("status") or {}):
            raise SettingsError(
                f"The server at {url} does not say which models are loaded; it is no AetherMind server."
            )
        models: list[dict[str, Any]] = response.json()["data"]
        return models
