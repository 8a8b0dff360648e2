"""`aethermind sessions`: list, save, load, protect and delete the sessions of a server, or those in a directory."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from aethermind.cli import console, options
from aethermind.cli.commands import SummaryGroup
from aethermind.cli.openai_client import check_key, client_options, connection_error, error_of
from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    import httpx

__all__ = ["app"]

EXAMPLES = console.examples("aethermind sessions list --url http://127.0.0.1:8000")
LIST_EXAMPLES = console.examples(
    "aethermind sessions list --url http://127.0.0.1:8000", "aethermind sessions list --dir ."
)

_TENANT_PREFIX = re.compile("^(?:[0-9a-f]{32})?/")
"""The prefix of a session's id in files: the id of the API key, if the server has keys, and a slash."""

_STATES = {
    "standby": "in device memory",
    "swapped": "in host memory",
    "warm": "in the prefix cache, until it is evicted",
    "saved": "in a file",
}

Url = Annotated[str, typer.Option("--url", help="The server.")]
ModelName = Annotated[
    str | None, typer.Option("--model", "-m", help="The server's model.", show_default="the only one")
]
Name = Annotated[str, typer.Argument(metavar="SESSION", help="The session_id of the conversation.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="AETHERMIND_API_KEY", show_envvar=False, help="The server's API key."),
]
_DEFAULT_URL = "http://127.0.0.1:8000"

app = typer.Typer(
    cls=SummaryGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List, save, load, protect and delete sessions: conversations whose KV cache is kept.",
    epilog=EXAMPLES,
)


@app.command("list", epilog=LIST_EXAMPLES)
def list_sessions(
    url: Url = _DEFAULT_URL,
    model: ModelName = None,
    api_key: ApiKey = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="List the saved sessions of this session_dir instead of a server's.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the sessions of a server, or those saved in a directory."""
    if directory is not None:
        sessions = _saved(directory)
    else:
        sessions = _request("GET", "", url, model, api_key)["data"]
    if as_json:
        console.print_json({"sessions": sessions})
        return
    if not sessions:
        print("There are no sessions.")
        return
    rows = [("session", "model", "tokens", "state", "protected", "saved", "idle")]
    rows += [
        (
            str(session["id"]),
            str(session["model"]),
            str(session["num_tokens"]),
            f"{session['state']}: {_STATES.get(session['state'], '')}",
            "yes" if session["protected"] else "no",
            "yes" if session["saved"] else "no",
            f"{session['idle_s']:.0f} s",
        )
        for session in sessions
    ]
    print(console.columns(rows))


@app.command("save", epilog=console.examples("aethermind sessions save tale --url http://127.0.0.1:8000"))
def save(name: Name, url: Url = _DEFAULT_URL, model: ModelName = None, api_key: ApiKey = None) -> None:
    """Write a session to the server's session_dir."""
    saved = _request("POST", f"/{_quoted(name)}/save", url, model, api_key)
    print(f"Saved {name}: {saved['num_tokens']} tokens.")


@app.command("load", epilog=console.examples("aethermind sessions load tale --url http://127.0.0.1:8000"))
def load(name: Name, url: Url = _DEFAULT_URL, model: ModelName = None, api_key: ApiKey = None) -> None:
    """Load a session from the server's session_dir."""
    loaded = _request("POST", f"/{_quoted(name)}/load", url, model, api_key)
    print(f"Loaded {name}: {loaded['num_tokens']} tokens.")


@app.command("delete", epilog=console.examples("aethermind sessions delete tale --url http://127.0.0.1:8000"))
def delete(name: Name, url: Url = _DEFAULT_URL, model: ModelName = None, api_key: ApiKey = None) -> None:
    """Delete a session from the server's memory and session_dir."""
    _request("DELETE", f"/{_quoted(name)}", url, model, api_key)
    print(f"Deleted {name}.")


@app.command("protect", epilog=console.examples("aethermind sessions protect tale --url http://127.0.0.1:8000"))
def protect(
    name: Name,
    url: Url = _DEFAULT_URL,
    model: ModelName = None,
    api_key: ApiKey = None,
    is_off: Annotated[bool, typer.Option("--off", help="Lift the protection.")] = False,
) -> None:
    """Keep a session in device memory: it neither expires nor is swapped out."""
    _request("POST", f"/{_quoted(name)}/{'unprotect' if is_off else 'protect'}", url, model, api_key)
    print(f"{name} is {'no longer ' if is_off else ''}protected.")


def _saved(directory: Path) -> list[dict[str, Any]]:
    from aethermind.engine.requests.session_files import list_session_files

    if not directory.is_dir():
        raise InvalidArgumentError(f"--dir {directory} is no directory; give the session_dir of a server.")
    return [
        {
            "id": _TENANT_PREFIX.sub("", session.name),
            "model": session.model,
            "state": "saved",
            "num_tokens": session.num_tokens,
            "protected": False,
            "saved": True,
            "idle_s": 0.0,
        }
        for session in list_session_files(directory)
    ]


def _quoted(name: str) -> str:
    """Quote a session's id as one segment of a URL's path; dots are escaped, too, because clients resolve `..`."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _request(method: str, path: str, url: str, model: str | None, api_key: str | None) -> dict[str, Any]:
    """Send a request and return the response's JSON; InvalidArgumentError with the server's message for an error."""
    try:
        import httpx
    except ImportError as error:
        raise SettingsError(
            f"`sessions` of a server needs {error.name}. Run `{pip_install_command('aethermind[serve]')}`."
        ) from None
    client: httpx.Client
    with closing(httpx.Client(**client_options(url, api_key))) as client:
        try:
            response = client.request(method, f"/v1/sessions{path}", params={} if model is None else {"model": model})
        except httpx.HTTPError as error:
            raise connection_error(client, error) from None
        check_key(client, response)
        if response.status_code != 200:
            raise InvalidArgumentError(str(error_of(response)["message"]))
        content: dict[str, Any] = response.json()
        return content
