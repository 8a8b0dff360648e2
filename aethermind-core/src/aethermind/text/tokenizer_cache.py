"""A cache of tokenizers on disk: tables of large vocabularies, which later processes map into memory."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import aethermind
from aethermind import env, text
from aethermind.cache_folder import CacheFolder, digest_of, file_fingerprint
from aethermind.errors import TokenizerError
from aethermind.log import get_logger
from aethermind.text.mapped_bpe import BpeTables, MappedBpe, has_tables, write_tables

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["has_cached_tables", "open_tokenizer"]

logger = get_logger(__name__)

_MAX_FILES = 16
_SUFFIX = ".bpe"

_MAX_PENDING = 2
_pending: dict[Path, tuple[FastTokenizer, str]] = {}
"""Tokenizers whose tables are written at exit, by the path of the tables. Only the last `_MAX_PENDING` are kept."""


def open_tokenizer(path: Path, read: Callable[[], FastTokenizer], *dependencies: str) -> FastTokenizer | MappedBpe:
    """Open the tokenizer of the file at `path`: over cached tables, or as `read` returns it.

    In the latter case the tables are written when the process exits, because making them blocks all other threads.
    `dependencies` are all values besides the file that the tokenizer depends on. Errors of `read` are passed on.
    """
    key = _key(path, dependencies)
    folder = _folder()
    table_path = folder.path_of(key)
    try:
        tables = BpeTables(table_path, key)
    except OSError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("Tables of %s are made again, because the cached ones are damaged: %s", path, error)
        folder.discard(key)
    else:
        folder.touch(key)

        def read_again() -> FastTokenizer:
            if not _is_unchanged(path, dependencies, key):
                raise TokenizerError(f"{path} has changed since the model was opened. Open the model again.")
            return _without_truncation(read())

        return MappedBpe(tables, read_again)
    fast = _without_truncation(read())
    if has_tables(fast):
        _write_at_exit(fast, key, table_path)
    return fast


def has_cached_tables(path: Path, *dependencies: str) -> bool:
    """Whether `open_tokenizer` would find tables, which are mapped, and not read the tokenizer into memory."""
    try:
        return _folder().path_of(_key(path, dependencies)).is_file()
    except OSError:
        return False


def _folder() -> CacheFolder:
    return CacheFolder(env.cache_directory() / "tokenizers", _SUFFIX, max_files=_MAX_FILES)


def _without_truncation(fast: FastTokenizer) -> FastTokenizer:
    """Switch off truncation and padding, which tables do not represent."""
    fast.no_truncation()
    fast.no_padding()
    return fast


def _is_unchanged(path: Path, dependencies: Sequence[str], key: str) -> bool:
    try:
        return _key(path, dependencies) == key
    except OSError:
        return False


def _key(path: Path, dependencies: Sequence[str]) -> str:
    """Return a digest of the size and times of a tokenizer's file, and of the code that makes tables of it."""
    import tokenizers

    code = sorted(Path(text.__path__[0]).glob("*.py"))
    versions = [aethermind.__version__, tokenizers.__version__, *dependencies]
    return digest_of([versions, [file_fingerprint(file) for file in (path, *code)]])


def _write_at_exit(fast: FastTokenizer, key: str, table_path: Path) -> None:
    is_first = not _pending
    _pending.pop(table_path, None)
    _pending[table_path] = fast, key
    if len(_pending) > _MAX_PENDING:
        del _pending[next(iter(_pending))]
    if is_first:
        atexit.register(_write_pending)


def _write_pending() -> None:
    while _pending:
        table_path, (fast, key) = _pending.popitem()
        _write(fast, key, CacheFolder(table_path.parent, _SUFFIX, max_files=_MAX_FILES))


def _write(fast: FastTokenizer, key: str, folder: CacheFolder) -> None:
    """Write tables. If that fails or is interrupted, nothing is written."""
    try:
        if not folder.has(key):
            folder.create()
            folder.evict()
            folder.write(key, write_tables(fast, key))
    except KeyboardInterrupt:
        pass
    except (OSError, ValueError) as error:
        logger.info("tables of a tokenizer are not cached for the next start: %s", error)
