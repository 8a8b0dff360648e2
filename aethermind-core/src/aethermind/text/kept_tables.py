"""Tables of large tokenizers in the user's cache folder: the next process that wants one maps what this one read."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import aethermind
from aethermind import env, text
from aethermind.errors import TokenizerError
from aethermind.kept_files import by_use, write_whole
from aethermind.log import get_logger
from aethermind.text.bpe_tables import BpeTables, has_tables, write_tables
from aethermind.text.mapped_bpe import MappedBpe

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["open_tokenizer"]

logger = get_logger(__name__)

_MAX_FILES = 16
_SUFFIX = ".bpe"

_MOST_PENDING = 2
_pending: dict[Path, tuple[FastTokenizer, str]] = {}
"""By the places of their tables, tokenizers whose tables are made at the end: the last ones, as each takes memory."""


def open_tokenizer(path: Path, read: Callable[[], FastTokenizer], *made_with: str) -> FastTokenizer | MappedBpe:
    """The tokenizer of a file: over its tables where there are any, else what `read` makes of it, whose tables are then
    made at the end of the process, since no other thread could run meanwhile.

    `made_with` is what it depends on otherwise. Whatever `read` raises is raised.
    """
    key = _key(path, made_with)
    place = env.cache_directory() / "tokenizers" / (key + _SUFFIX)
    try:
        tables = BpeTables(place, key)
    except OSError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("Tables of %s are made again, for those that were kept are damaged: %s", path, error)
        with suppress(OSError):
            place.unlink()
    else:
        with suppress(OSError):
            os.utime(place)

        def read_again() -> FastTokenizer:
            if not _is_still(path, made_with, key):
                raise TokenizerError(f"{path} is not the file any more that was opened as a model. Open it again.")
            return _unbounded(read())

        return MappedBpe(tables, read_again)
    fast = _unbounded(read())
    if has_tables(fast):
        _keep_at_exit(fast, key, place)
    return fast


def _unbounded(fast: FastTokenizer) -> FastTokenizer:
    """Without truncation and padding: tables know of neither."""
    fast.no_truncation()
    fast.no_padding()
    return fast


def _is_still(path: Path, made_with: Sequence[str], key: str) -> bool:
    try:
        return _key(path, made_with) == key
    except OSError:
        return False


def _key(path: Path, made_with: Sequence[str]) -> str:
    """32 hexadecimal digits over a tokenizer's file and what makes tables of it, by what the system says of them."""
    import tokenizers

    code = sorted(Path(text.__path__[0]).glob("*.py"))
    files = [os.stat(one) for one in (path, *code)]
    described = [
        [aethermind.__version__, tokenizers.__version__, *made_with],
        [[one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns] for one in files],
    ]
    return sha256(json.dumps(described).encode()).hexdigest()[:32]


def _keep_at_exit(fast: FastTokenizer, key: str, place: Path) -> None:
    is_first = not _pending
    _pending.pop(place, None)
    _pending[place] = fast, key
    if len(_pending) > _MOST_PENDING:
        del _pending[next(iter(_pending))]
    if is_first:
        atexit.register(_keep_pending)


def _keep_pending() -> None:
    while _pending:
        place, (fast, key) = _pending.popitem()
        _keep(fast, key, place)


def _keep(fast: FastTokenizer, key: str, place: Path) -> None:
    """Write tables, unless that is impossible or interrupted."""
    try:
        if not place.exists():
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path, _ in by_use(place.parent, _SUFFIX)[: 1 - _MAX_FILES]:
                with suppress(OSError):
                    path.unlink()
            write_whole(place, write_tables(fast, key))
    except KeyboardInterrupt:
        pass
    except (OSError, ValueError) as error:
        logger.info("tables of a tokenizer are not kept for the next start: %s", error)
