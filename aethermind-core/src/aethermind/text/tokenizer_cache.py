"""A cache of tokenizers on disk: tables of large vocabularies, which later processes map instead of the file."""

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
from aethermind.text.bpe_tables import BpeTables, has_tables, write_tables
from aethermind.text.mapped_bpe import MappedBpe

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["has_cached_tables", "open_tokenizer"]

logger = get_logger(__name__)

_MAX_FILES = 16
_SUFFIX = ".bpe"

_MAX_PENDING = 2
_pending: dict[Path, tuple[FastTokenizer, str]] = {}
"""Tokenizers whose tables are written at exit, by the paths of these: only the last ones, since each takes memory."""


def open_tokenizer(path: Path, read: Callable[[], FastTokenizer], *made_with: str) -> FastTokenizer | MappedBpe:
    """Open the tokenizer of the file at `path`: over cached tables, or as `read` returns it.

    In the latter case its tables are written when the process exits, because making them blocks all other threads.
    `made_with` is what the tokenizer depends on besides the file. What `read` raises is raised.
    """
    key = _key(path, made_with)
    folder = _folder()
    place = folder.path_of(key)
    try:
        tables = BpeTables(place, key)
    except OSError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("Tables of %s are made again, because the cached ones are damaged: %s", path, error)
        folder.discard(key)
    else:
        folder.touch(key)

        def read_again() -> FastTokenizer:
            if not _is_unchanged(path, made_with, key):
                raise TokenizerError(f"{path} has changed since the model was opened. Open the model again.")
            return _unbounded(read())

        return MappedBpe(tables, read_again)
    fast = _unbounded(read())
    if has_tables(fast):
        _write_at_exit(fast, key, place)
    return fast


def has_cached_tables(path: Path, *made_with: str) -> bool:
    """Whether `open_tokenizer` would find tables, which are mapped, and not read the tokenizer into memory."""
    try:
        return _folder().path_of(_key(path, made_with)).is_file()
    except OSError:
        return False


def _folder() -> CacheFolder:
    return CacheFolder(env.cache_directory() / "tokenizers", _SUFFIX, max_files=_MAX_FILES)


def _unbounded(fast: FastTokenizer) -> FastTokenizer:
    """Switch off truncation and padding, which tables do not represent."""
    fast.no_truncation()
    fast.no_padding()
    return fast


def _is_unchanged(path: Path, made_with: Sequence[str], key: str) -> bool:
    try:
        return _key(path, made_with) == key
    except OSError:
        return False


def _key(path: Path, made_with: Sequence[str]) -> str:
    """Return a digest of the stamps of a tokenizer's file and of the code that makes tables of it."""
    import tokenizers

    code = sorted(Path(text.__path__[0]).glob("*.py"))
    versions = [aethermind.__version__, tokenizers.__version__, *made_with]
    return digest_of([versions, [file_fingerprint(file) for file in (path, *code)]])


def _write_at_exit(fast: FastTokenizer, key: str, place: Path) -> None:
    is_first = not _pending
    _pending.pop(place, None)
    _pending[place] = fast, key
    if len(_pending) > _MAX_PENDING:
        del _pending[next(iter(_pending))]
    if is_first:
        atexit.register(_write_pending)


def _write_pending() -> None:
    while _pending:
        place, (fast, key) = _pending.popitem()
        _write(fast, key, CacheFolder(place.parent, _SUFFIX, max_files=_MAX_FILES))


def _write(fast: FastTokenizer, key: str, folder: CacheFolder) -> None:
    """Write tables, unless that is impossible or interrupted."""
    try:
        if not folder.has(key):
            folder.create()
            folder.evict()
            folder.write(key, write_tables(fast, key))
    except KeyboardInterrupt:
        pass
    except (OSError, ValueError) as error:
        logger.info("tables of a tokenizer are not cached for the next start: %s", error)
