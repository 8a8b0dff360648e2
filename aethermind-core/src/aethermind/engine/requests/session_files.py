"""Files of saved sessions: keys and values as `KVCache.save` writes them, and beside each a JSON file of its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.atomic_file import atomic_write
from aethermind.cache.serialization import read_blocks
from aethermind.errors import CacheContentError, InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.cache.serialization import BlockContents

__all__ = ["SessionFiles", "list_session_files"]

_INDEX, _VALUES = ".session.json", ".safetensors"


class SessionFiles:
    """The saved sessions of one directory. Their files are named by a hash of the session's name.

    A session has two files; the JSON file is written last and deleted first, so one that exists is complete.
    """

    def __init__(self, directory: Path, open_contents: Callable[[], BlockContents]) -> None:
        """Create the directory if it does not exist; InvalidArgumentError if that fails."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgumentError(
                f"session_dir {directory} is no directory: {error.strerror}.", param="session_dir"
            ) from error
        self._directory = directory
        self._open_contents = open_contents

    @cached_property
    def contents(self) -> BlockContents:
        """Reads and writes the blocks of the engine."""
        return self._open_contents()

    def has(self, name: str) -> bool:
        """Whether a session of this name is saved."""
        return self._path(name, _INDEX).is_file()

    def length(self, name: str) -> int | None:
        """The number of tokens of a saved session; None if there is none, or if its file is damaged."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(_read_index(self._path(name, _INDEX))["num_tokens"])
        return None

    def lengths(self, prefix: str = "") -> dict[str, int]:
        """Map the names of saved sessions that begin with `prefix` to their numbers of tokens."""
        return {name: num_tokens for name, num_tokens in list_session_files(self._directory) if name.startswith(prefix)}

    def save(self, name: str, token_ids: Sequence[int], data: bytes) -> None:
        """Write a session in place of an earlier one; InvalidArgumentError if that fails.

        `data` holds the keys and values of all `token_ids` but the last.
        """
        record = {"name": name, "num_tokens": len(token_ids) - 1, "token_ids": list(token_ids)}
        try:
            self.delete(name)
            atomic_write(self._path(name, _VALUES), [data])
            atomic_write(self._path(name, _INDEX), [json.dumps(record).encode()])
        except OSError as error:
            raise InvalidArgumentError(f"Session {name} cannot be saved: {error.strerror or error}.") from error

    def read(self, name: str) -> tuple[list[int], bytes] | None:
        """The tokens and the bytes of a saved session; None if there is none. CacheContentError for a damaged one."""
        if not self.has(name):
            return None
        try:
            token_ids = _read_index(self._path(name, _INDEX))["token_ids"]
            return [int(token_id) for token_id in token_ids], self._path(name, _VALUES).read_bytes()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CacheContentError(f"The files of session {name} are damaged ({error}). Delete it.") from error

    @staticmethod
    def extra_key(data: bytes) -> bytes:
        """The extra key under which the blocks of a saved session are shared; CacheContentError for damaged bytes."""
        return bytes.fromhex(read_blocks(data).notes.get("extra_key", ""))

    def delete(self, name: str) -> None:
        """Delete the files of a session, if there are any."""
        for suffix in (_INDEX, _VALUES):
            with suppress(OSError):
                self._path(name, suffix).unlink()

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / (blake2b(name.encode(), digest_size=16).hexdigest() + suffix)


def list_session_files(directory: Path) -> list[tuple[str, int]]:
    """The name and number of tokens of each saved session of a directory, by name; damaged files are left out."""
    found = []
    for path in directory.glob(f"*{_INDEX}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = _read_index(path)
            found.append((str(record["name"]), int(record["num_tokens"])))
    return sorted(found)


def _read_index(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return record
