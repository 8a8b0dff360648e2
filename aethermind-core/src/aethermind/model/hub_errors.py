"""Failures of requests to the Hugging Face Hub, each as one sentence that says what to do."""

from __future__ import annotations

import errno

from aethermind.model.hub_files import HubName

__all__ = ["explain_failure", "is_unreachable"]

_LOG_IN = "run `hf auth login` or set HF_TOKEN"


def is_unreachable(error: BaseException) -> bool:
    """Whether the Hub cannot serve a request: no network, a timeout, offline mode, or a server error (5xx)."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        return error.response is not None and error.response.status_code >= 500
    return isinstance(error, OfflineModeIsEnabled) or _is_of_transport(error)


def explain_failure(name: HubName, error: BaseException) -> str | None:
    """Say why a model cannot be had, and what to do; None for an error of another kind.

    A RuntimeError or another OSError is taken for a download that was cut off.
    """
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{name} is not in the cache, and HF_HUB_OFFLINE forbids downloads. Unset it, or give a path."
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_response(name, error)
    if isinstance(error, errors.HFValidationError):
        return f"{name} cannot be the name of a model on the Hugging Face Hub. Correct it, or give a path."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"The disk is full: {name} was not downloaded. Free some space, or set HF_HOME to another disk."
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"{error.filename} cannot be written ({error.strerror}): {name} was not downloaded. Set HF_HOME to a "
            "folder that you may write."
        )
    if _is_of_transport(error):
        return (
            f"{_endpoint()} cannot be reached to download {name} ({_short(error)}). Check the network and HF_ENDPOINT, "
            "or give the path of a model."
        )
    if isinstance(error, OSError | RuntimeError):  # of a size that is not the announced one, or of hf_xet
        return f"The download of {name} was cut off ({_short(error)}). Run it again: files that are complete are kept."
    return None


def _explain_response(name: HubName, error: BaseException) -> str:
    """Explain a response with a status of 400 or more."""
    from huggingface_hub import errors, get_token

    response = getattr(error, "response", None)
    status = 0 if response is None else response.status_code
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated: accept its conditions at {_endpoint()}/{name.repo}, and then {_LOG_IN} with a token "
            "that may read it."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name.repo} has no revision {name.revision or 'main'}: name a branch, a tag or a commit of it."
    if isinstance(error, errors.EntryNotFoundError):
        return f"A file of {name} is missing on the Hub ({_short(error)}). Name another revision."
    if status == 401 and get_token() is not None and not _says(response, "RepoNotFound"):
        return f"The Hugging Face Hub does not accept your token: {_LOG_IN} with a valid one, or unset HF_TOKEN."
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return (
            f"{name.repo!r} is neither a path nor a model on the Hugging Face Hub that you may read: correct it, or if "
            f"it is private {_LOG_IN}."
        )
    if status == 403:
        return f"Your token may not read {name}: {_LOG_IN} with one that may, or ask its owner for access."
    if status == 429:
        wait = None if response is None else response.headers.get("Retry-After")
        when = f"in {wait} s" if wait else "later"
        return f"The Hugging Face Hub limits your requests (429): try again {when}, or {_LOG_IN} for a higher limit."
    return f"{_endpoint()} answered {status or 'with an error'} for {name}. Try again later."


def _says(response: object, code: str) -> bool:
    return getattr(response, "headers", {}).get("X-Error-Code") == code


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _is_of_transport(error: BaseException) -> bool:
    """Whether an error is of the HTTP library, which differs between versions of the client, or of the network."""
    from huggingface_hub.errors import HfHubHTTPError

    root = next(cls for cls in reversed(HfHubHTTPError.__mro__) if cls.__module__ != "builtins")
    return isinstance(error, root | ConnectionError | TimeoutError)


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__
