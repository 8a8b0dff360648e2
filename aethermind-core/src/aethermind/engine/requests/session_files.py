"""Files of saved sessions: a line of JSON with the tokens, then keys and values as `KVCache.save` writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from aethermind.atomic_file import atomic_write
from aethermind.cache.serialization import read_blocks
from aethermind.errors import CacheContentError, InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.cache.serialization import BlockContents

__all__ = ["SavedSession", "SessionFiles", "list_session_files"]

_SUFFIX = ".session"


@dataclass(frozen=True, slots=True, order=True)
class SavedSession:
    """A saved session: its name, its number of computed tokens, and its model's path or name."""

    name: str
    num_tokens: int
    model: str


class SessionFiles:
    """The saved sessions of one model, in a folder of their own below `session_dir`.

    A file is named by a hash of the session's name. It is replaced atomically, so it is always complete.
    """

    def __init__(
        self, session_dir: Path, model: str, key: Sequence[object], open_contents: Callable[[], BlockContents]
    ) -> None:
        """Create the folder if it does not exist; InvalidArgumentError if no files can be written to it.

        `open_contents` opens the engine's block I/O at its first use. Engines with different `key`s have different
        folders, because their keys and values differ. `model` is the path or the name of the model, for
        `list_session_files`.
        """
        self._directory = session_dir / _hash(repr(tuple(key)))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self._directory):
                pass
        except OSError as error:
            raise InvalidArgumentError(
                f"session_dir {session_dir} cannot be written to: {error.strerror}. Name a directory in which "
                "files may be created.",
                param="session_dir",
            ) from error
        self._model = model
        self._open_contents = open_contents

    @cached_property
    def contents(self) -> BlockContents:
        """The object that reads and writes the engine's KV blocks."""
        return self._open_contents()

    def has(self, name: str) -> bool:
        """Whether there is a file of a session of this name."""
        return os.path.exists(self._path(name))

    def length(self, name: str) -> int | None:
        """The number of computed tokens of a saved session; None if there is none, 0 if its file cannot be read."""
        if not self.has(name):
            return None
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(_read_record(self._path(name))["num_tokens"])
        return 0

    def lengths(self, prefix: str = "") -> dict[str, int]:
        """Map the names of saved sessions that begin with `prefix` to their numbers of computed tokens."""
        sessions = _read_all(self._directory.glob(f"*{_SUFFIX}"))
        return {saved.name: saved.num_tokens for saved in sessions if saved.name.startswith(prefix)}

    def save(self, name: str, token_ids: Sequence[int], data: bytes) -> None:
        """Write a session in place of an earlier one. If that fails, the earlier one remains: InvalidArgumentError.

        `data` holds the keys and values of all `token_ids` but the last.
        """
        record = {"name": name, "num_tokens": len(token_ids) - 1, "model": self._model, "token_ids": list(token_ids)}
        try:
            atomic_write(self._path(name), [json.dumps(record).encode() + b"\n", data])
        except OSError as error:
            raise InvalidArgumentError(f"The session cannot be saved: {error.strerror or error}.") from error

    def read(self, name: str) -> tuple[list[int], bytes] | None:
        """The tokens and the bytes of a saved session; None if there is none.

        CacheContentError for a damaged file; InvalidArgumentError for one that cannot be read.
        """
        if not self.has(name):
            return None
        try:
            with self._path(name).open("rb") as file:
                token_ids = json.loads(file.readline())["token_ids"]
                return [int(token_id) for token_id in token_ids], file.read()
        except OSError as error:
            raise InvalidArgumentError(
                f"The file of the session cannot be read: {error.strerror}. Let the engine's user read it."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CacheContentError(f"The file of the session is damaged ({error}). Delete the session.") from error

    @staticmethod
    def extra_key(data: bytes) -> bytes:
        """The extra key under which the blocks of a saved session are shared; CacheContentError for damaged bytes."""
        return bytes.fromhex(read_blocks(data).extra_metadata.get("extra_key", ""))

    def delete(self, name: str) -> None:
        """Delete the file of a session, if there is one; InvalidArgumentError if that fails."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise InvalidArgumentError(
                f"The file of the session cannot be deleted: {error.strerror}. Let the engine's user write to its "
                "folder."
            ) from error

    def _path(self, name: str) -> Path:
        return self._directory / (_hash(name) + _SUFFIX)


def list_session_files(session_dir: Path) -> list[SavedSession]:
    """The saved sessions of all models in a `session_dir`, by name; files that cannot be read are left out."""
    return sorted(_read_all(session_dir.glob(f"*/*{_SUFFIX}")))


def _read_all(paths: Iterable[Path]) -> list[SavedSession]:
    sessions = []
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = _read_record(path)
            sessions.append(SavedSession(str(record["name"]), int(record["num_tokens"]), str(record["model"])))
    return sessions


def _read_record(path: Path) -> dict[str, Any]:
    """Read the first line of a session file."""
    with path.open("rb") as file:
        record: dict[str, Any] = json.loads(file.readline())
    return record


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
