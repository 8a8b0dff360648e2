"""A ring buffer of the last steps in a memory-mapped file, which survives the process."""

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
"""Record: seconds (negative while running), number from 1 on (0: empty), tokens, block copies, request ids."""
_SECONDS = struct.Struct("<d")


class Step(NamedTuple):
    """A recorded step; `seconds` is None if it did not end."""

    number: int
    seconds: float | None
    num_tokens: int
    num_copies: int
    request_ids: str


def path() -> Path:
    """The file of `AETHERMIND_BLACKBOX_FILE`, by default one in the temporary directory."""
    return Path(os.environ.get("AETHERMIND_BLACKBOX_FILE") or Path(tempfile.gettempdir(), "aethermind-blackbox.bin"))


class Recorder:
    """Writes a new file. Mapped memory is preserved by the system when the process is killed."""

    def __init__(self, file: Path) -> None:
        """Create the file; InvalidArgumentError if it cannot be written."""
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
        """Record the start of a step; returns its position for `end`."""
        offset = self._number % NUM_RECORDS * _RECORD.size
        self._number += 1
        ids = request_ids.encode(errors="replace")
        _RECORD.pack_into(self._map, offset, -1.0, self._number, num_tokens, num_copies, ids)
        return offset

    def end(self, offset: int, seconds: float) -> None:
        """Record the duration of a step."""
        _SECONDS.pack_into(self._map, offset, seconds)

    def close(self) -> None:
        """Flush and close the file."""
        self._map.close()


def read(file: Path) -> list[Step]:
    """Read the steps of a file, oldest first; InvalidArgumentError if it cannot be read."""
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
