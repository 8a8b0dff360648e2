"""The last steps, in a file that outlives the process: a ring of records in mapped memory."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from aethermind.errors import InvalidArgumentError

__all__ = ["NUM_RECORDS", "Recorder", "Step", "path", "read"]

NUM_RECORDS = 1000
_RECORD = struct.Struct("<dQII72s")
"""Seconds (negative while it runs), number from 1 on (0: never written), tokens, copies of blocks, ids of requests."""
_SECONDS = struct.Struct("<d")


class Step(NamedTuple):
    """What is known of a step; `seconds` is None where it did not end."""

    number: int
    seconds: float | None
    num_tokens: int
    num_copies: int
    request_ids: str


def path() -> Path:
    """The file that `AETHERMIND_BLACKBOX_FILE` names, or one among the temporary files."""
    return Path(os.environ.get("AETHERMIND_BLACKBOX_FILE") or Path(tempfile.gettempdir(), "aethermind-blackbox.bin"))


class Recorder:
    """Writes a new file. The system keeps what was written, also when this process is killed."""

    def __init__(self, file: Path) -> None:
        """InvalidArgumentError where the file cannot be written."""
        try:
            file.write_bytes(bytes(NUM_RECORDS * _RECORD.size))
            with file.open("r+b") as opened:
                self._map = mmap.mmap(opened.fileno(), 0)
        except OSError as error:
            raise InvalidArgumentError(
                f"The flight recorder {file} cannot be written: {error.strerror}. Set AETHERMIND_BLACKBOX_FILE."
            ) from None
        self._number = 0

    def begin(self, num_tokens: int, num_copies: int, request_ids: str) -> int:
        """Write down that a step begins; returns where its end is to be noted."""
        offset = self._number % NUM_RECORDS * _RECORD.size
        self._number += 1
        ids = request_ids.encode(errors="replace")
        _RECORD.pack_into(self._map, offset, -1.0, self._number, num_tokens, num_copies, ids)
        return offset

    def end(self, offset: int, seconds: float) -> None:
        """Note what the step took."""
        _SECONDS.pack_into(self._map, offset, seconds)

    def close(self) -> None:
        """Write what is left; nothing is recorded any more."""
        self._map.close()


def read(file: Path) -> list[Step]:
    """The steps in a file, the oldest first; InvalidArgumentError where there is none."""
    try:
        records = list(_RECORD.iter_unpack(file.read_bytes()))
    except (OSError, struct.error):
        raise InvalidArgumentError(
            f"There is no flight recorder in {file}. Run a model with --executor blackbox, or set "
            "AETHERMIND_BLACKBOX_FILE to the file that it wrote."
        ) from None
    steps = [
        Step(number, None if seconds < 0 else seconds, tokens, copies, ids.rstrip(b"\0").decode(errors="replace"))
        for seconds, number, tokens, copies, ids in records
        if number
    ]
    return sorted(steps)
