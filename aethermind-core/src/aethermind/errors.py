"""The exceptions that AetherMind raises on purpose.

    AetherMindError
    ├── InvalidArgumentError       a value given by the caller is out of range or of the wrong kind
    │   └── ContextLengthError     a prompt does not fit the context
    ├── ConfigError                a model's configuration cannot be read or is inconsistent
    ├── CheckpointError            a checkpoint is missing, corrupt or does not fit the model
    ├── TokenizerError             a tokenizer or chat template cannot be read or used
    ├── PluginError                a plugin failed, clashed or needs another API version
    ├── DeviceError                a device is unknown or absent
    │   └── OutOfMemoryError       a device could not provide the memory that was asked for
    ├── CacheContentError          stored keys and values are damaged, or of another model
    ├── EngineDeadError            an engine failed or was closed while requests were open
    ├── RequestTimeoutError        a request exceeded its timeout
    ├── SettingsError              a setting in a file or an environment variable is unknown or wrong
    ├── OperatorError              an operator was called with inputs its schema does not allow
    ├── KernelNotFoundError        no kernel of the chosen device computes an operator
    └── ComputationError           a step produced unusable values, such as logits that are not finite
        └── KernelError            a kernel raised, or broke its contract, while a step ran

Every message is one sentence or two: what failed, with which values, which alternatives were tried, what to do.
The command line turns each of them into exit code 2 without a traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AetherMindError",
    "CacheContentError",
    "CheckpointError",
    "ComputationError",
    "ConfigError",
    "ContextLengthError",
    "DeviceError",
    "EngineDeadError",
    "InvalidArgumentError",
    "KernelError",
    "KernelNotFoundError",
    "OperatorError",
    "OutOfMemoryError",
    "PluginError",
    "RequestTimeoutError",
    "SettingsError",
    "TokenizerError",
]


def describe_exception(error: BaseException) -> str:
    """Format an exception of third-party code for the end of an error message: `ValueError: shapes differ.`"""
    message = " ".join(str(error).split()) or "without a message"
    return f"{type(error).__name__}: {message.rstrip('.')}."


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: `; did you mean X?`, or a full stop if no name is close.

    A known name with the same part after the last dot takes precedence, which is a key of another section.
    """
    from difflib import get_close_matches

    text, names = str(name), list(known)
    key = text.rpartition(".")[2]
    same_key = [name for name in names if "." in name and name.rpartition(".")[2] == key]
    close = same_key or get_close_matches(text, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else "."


class AetherMindError(Exception):
    """The base of all errors that AetherMind raises on purpose."""


class InvalidArgumentError(AetherMindError, ValueError):
    """A value given by the caller is out of range or of the wrong kind.

    `param` is the name of the parameter, option or field that has the value; None if the error does not concern exactly
    one.
    """

    def __init__(self, *arguments: object, param: str | None = None) -> None:
        super().__init__(*arguments)
        self.param = param


class ConfigError(AetherMindError):
    """A model's configuration cannot be read or contradicts itself."""


class CheckpointError(AetherMindError):
    """A checkpoint is missing, corrupt or does not fit the model."""


class TokenizerError(AetherMindError):
    """A tokenizer or chat template cannot be read or used."""


class PluginError(AetherMindError):
    """A plugin failed to load, claims a name that another plugin has or needs another version of the plugin API."""


class SettingsError(AetherMindError):
    """A setting in a file or an environment variable is unknown or wrong."""


class DeviceError(AetherMindError):
    """A device is unknown, absent, or failed."""


class OutOfMemoryError(DeviceError):
    """A device could not provide the memory that was asked for."""


class CacheContentError(AetherMindError):
    """Stored keys and values are damaged, or were computed by another model."""


class EngineDeadError(AetherMindError):
    """An engine failed or was closed; its open requests end with this error."""


class RequestTimeoutError(AetherMindError):
    """A request exceeded its timeout and was cancelled."""


class OperatorError(AetherMindError):
    """An operator was called with inputs that its schema does not allow."""


class KernelNotFoundError(AetherMindError):
    """No kernel of the chosen device computes an operator, neither directly nor through a decomposition."""


class ComputationError(AetherMindError):
    """A step produced unusable values, such as logits that are NaN; the request is not the cause."""


class KernelError(ComputationError):
    """A kernel raised, or broke its contract, while a step ran; the message names its package."""


class ContextLengthError(InvalidArgumentError):
    """A prompt, or a prompt with its output, does not fit the model's context."""


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def remedy(path: Path, error: BaseException | None = None, *, otherwise: str = "Fetch the file again.") -> str:
    """Return the advice for a file that cannot be read: one sentence for a known cause, else `otherwise`.

    Known causes are missing permissions, OSErrors, and a Git LFS pointer in place of the file. `error` is the exception
    that was raised. Its text is examined too, because native libraries raise untyped errors.
    """
    if isinstance(error, PermissionError) or "os error 13" in str(error):
        return "Let this user read it: chmod u+r, or sudo chown."
    if isinstance(error, OSError):
        return "Check the path and the disk."
    return _lfs_remedy(path) or otherwise


def _lfs_remedy(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return None
    if not is_pointer:
        return None
    return (
        "This is a Git LFS pointer, not the file: run `git lfs pull` in the clone, or download the model with "
        "`hf download`."
    )
