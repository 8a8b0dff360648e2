"""Helpers for clients of servers with OpenAI's API: connections, models, errors and event streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    import httpx

__all__ = [
    "EventParser",
    "check_key",
    "choose_model",
    "client_options",
    "code_of",
    "connection_error",
    "error_of",
    "reason_of",
    "text_of",
]

_CONNECT_TIMEOUT_S = 10.0


def client_options(url: str, api_key: str | None) -> dict[str, Any]:
    """Return the arguments of an httpx client for the server at `url`, with or without /v1; no proxy is used."""
    import httpx

    if not url.startswith(("http://", "https://")):
        raise InvalidArgumentError(f"--url is {url!r} but should be an address such as http://127.0.0.1:8000.")
    try:
        base_url = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        headers = httpx.Headers({} if api_key is None else {"Authorization": f"Bearer {api_key}"})
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidArgumentError(f"--url or --api-key cannot be used: {error}. Correct it.") from None
    timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
    return {"base_url": base_url, "headers": headers, "timeout": timeout, "trust_env": False}


def connection_error(client: httpx.Client | httpx.AsyncClient, error: httpx.HTTPError) -> InvalidArgumentError:
    """Return the error for a server that cannot be reached."""
    reason = str(error) or type(error).__name__
    return InvalidArgumentError(
        f"No server answers at {_address_of(client)} ({reason}). Start one with `aethermind serve`, or correct --url."
    )


def check_key(client: httpx.Client | httpx.AsyncClient, response: httpx.Response) -> None:
    """Raise InvalidArgumentError if the server refuses the API key."""
    if response.status_code == 401:
        raise InvalidArgumentError(
            f"The server at {_address_of(client)} wants an API key: {error_of(response)['message']} "
            "Set AETHERMIND_API_KEY or pass --api-key."
        )


def choose_model(
    client: httpx.Client | httpx.AsyncClient, response: httpx.Response, name: str | None
) -> dict[str, Any]:
    """Return the entry of a response of /v1/models for the model `name`, by default the first.

    InvalidArgumentError if there is none.
    """
    try:
        models = {str(model["id"]): dict(model) for model in response.json()["data"]}
    except (ValueError, KeyError, TypeError):
        models = {}
    if response.status_code != 200 or not models:
        raise InvalidArgumentError(
            f"{_address_of(client)} does not list models as OpenAI's API does: /v1/models gives {reason_of(response)} "
            "Correct --url."
        )
    if name is not None and name not in models:
        raise InvalidArgumentError(
            f"The server has no model {name!r}; it has {_first_names(list(models))}. Correct --model."
        )
    return models[name] if name is not None else next(iter(models.values()))


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a response, in OpenAI's format or made from its text; `message` is always set."""
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = response.text
    if not isinstance(error, dict):
        error = {"message": str(error)}
    return {**error, "message": " ".join(str(error.get("message") or "no reason given").split())[:300]}


def reason_of(response: httpx.Response) -> str:
    """Return why a response is unexpected, as the end of a sentence such as "/v1/models gives …"."""
    if response.status_code == 200:
        return "an unexpected body."
    return f"HTTP {response.status_code}, {error_of(response)['message'].rstrip('.')}."


def code_of(error: dict[str, Any]) -> tuple[str, ...]:
    """Return the code, else the type, of an error as a tuple of one; empty if there is none that is not a number."""
    name = error.get("code") or error.get("type")
    return (str(name),) if name and not str(name).isdecimal() else ()


def text_of(choice: dict[str, Any]) -> str:
    """Return the text in a streamed `choices` entry, of completions or chats; a chat's reasoning counts as text."""
    delta = choice.get("delta") or {}
    names = ("content", "reasoning_content", "reasoning")
    return choice.get("text") or next((text for name in names if (text := delta.get(name))), "")


class EventParser:
    """Parses the bytes of a server-sent event stream into the data of its events. Mutable.

    Lines are split at line feeds only, because the JSON in an event may contain other line separators.
    """

    def __init__(self) -> None:
        self._incomplete = b""

    def push(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of the events that end in this chunk."""
        *lines, self._incomplete = (self._incomplete + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _address_of(client: httpx.Client | httpx.AsyncClient) -> str:
    return str(client.base_url).rstrip("/")
