"""What strangers' code answered before, kept in the user's cache until something changes that the answer depends on."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aethermind import env
from aethermind.log import get_logger

__all__ = ["KeptAnswers", "stamp_of"]

logger = get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def stamp_of(version: str, files: Iterable[str]) -> str | None:
    """Everything an answer depends on that can be told cheaply, as text; None where the time of boot is not known.

    It is the package's version and the age of files of its code (an author edits them without a new version), the host
    and its boot, the Python installation, and the variables that hide devices or choose libraries.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return None
    written = [_time_written(file) for file in files]
    chosen = {name: value for name, value in sorted(os.environ.items()) if _changes_what_is_there(name)}
    return json.dumps([version, written, boot, platform.node(), sys.prefix, platform.python_version(), chosen])


class KeptAnswers:
    """Answers by key, in a file `aethermind/NAME` under XDG_CACHE_HOME or ~/.cache."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def file(self) -> Path:
        """Where they are."""
        return env.cache_directory() / self._name

    def recall(self, key: str, stamp: str | None) -> dict[str, Any] | None:
        """The answer kept for `key`, if it was given under the same stamp."""
        kept = self._read().get(key)
        return None if stamp is None or not isinstance(kept, dict) or kept.get("stamp") != stamp else kept

    def keep(self, key: str, stamp: str | None, answer: dict[str, Any]) -> None:
        """Keep an answer; where the file cannot be written, the next process asks again."""
        if stamp is not None:
            self._write({**self._read(), key: {"stamp": stamp, **answer}})

    def forget(self, is_forgotten: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the answers that a predicate chooses."""
        kept = self._read()
        left = {key: answer for key, answer in kept.items() if isinstance(answer, dict) and not is_forgotten(answer)}
        if left != kept:
            self._write(left)

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}

    def _write(self, answers: dict[str, Any]) -> None:
        import tempfile

        path = self.file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f"{path.stem}-", delete=False) as file:
                json.dump(answers, file, indent=1)
            os.replace(file.name, path)
        except OSError as error:
            logger.info("what plugins answered cannot be kept in %s: %s", path, error)


def _time_written(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _changes_what_is_there(name: str) -> bool:
    return name.endswith("VISIBLE_DEVICES") or name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
