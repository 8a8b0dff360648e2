"""`cases.jsonl`: a line when a case begins, another with what came of it, both on disk before the next begins.

A case that brings its process down is the one that began and has no result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aethermind_cuda.driver import CudaError

__all__ = ["CASES_FILE", "CaseLog", "DEVICE_LOST_STATUS", "LOST_DEVICE_CODES", "lost_device"]

CASES_FILE = "AETHERMIND_CUDA_CHECK_CASES"
"""The environment variable that names the file."""

LOST_DEVICE_CODES = frozenset({214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""Sticky CUresult errors: every later call of the process fails with them."""

DEVICE_LOST_STATUS = 70
"""The exit status of a process that ended because its device was lost."""


@dataclass(frozen=True, slots=True)
class CaseLog:
    """The lines of one suite. `path` None keeps none of them."""

    suite: str
    path: Path | None

    @classmethod
    def of_environment(cls, suite: str) -> CaseLog:
        """The file that CASES_FILE names."""
        named = os.environ.get(CASES_FILE)
        return cls(suite, Path(named) if named else None)

    @contextmanager
    def case(self, name: str) -> Iterator[dict[str, Any]]:
        """Record a case by the facts that the block adds to the dict. An exception is a failure, and is not raised.

        Where it says that the device is lost, the process ends with DEVICE_LOST_STATUS: no later case could run in it.
        """
        facts: dict[str, Any] = {}
        self.write(running=name)
        try:
            yield facts
        except Exception as error:
            self.failed(name, f"{type(error).__name__}: {error}", **facts)
            if lost_device(error):
                os._exit(DEVICE_LOST_STATUS)
        else:
            self.passed(name, **facts)

    def passed(self, name: str, **facts: Any) -> None:
        """A case did what it should."""
        self._end(name, "passed", facts)

    def failed(self, name: str, reason: str, **facts: Any) -> None:
        """A case did not."""
        self._end(name, "FAILED", {"reason": reason[:2000], **facts})

    def write(self, **record: Any) -> None:
        """Append one line and flush it to the disk."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"suite": self.suite, **record}) + "\n")
                stream.flush()
                os.fsync(stream.fileno())

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of this suite; one that was cut off is left out."""
        if self.path is None or not self.path.is_file():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("suite") == self.suite:
                yield record

    def begun(self) -> set[str]:
        """Cases that began, whatever came of them."""
        return {record["running"] for record in self.records() if "running" in record}

    def unfinished(self) -> list[str]:
        """Cases that began and have no result."""
        ended = {record["case"] for record in self.records() if "case" in record}
        return sorted(self.begun() - ended)

    def failures(self) -> list[str]:
        """Cases that failed."""
        return [record["case"] for record in self.records() if record.get("outcome") == "FAILED"]

    def _end(self, name: str, outcome: str, facts: dict[str, Any]) -> None:
        self.write(case=name, outcome=outcome, **facts)
        said = ", ".join(f"{key} {_short(value)}" for key, value in facts.items())
        print(f"{outcome} {self.suite}: {name}{': ' if said else ''}{said}", flush=True)


def lost_device(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that the device is lost to this process."""
    while error is not None:
        if isinstance(error, CudaError) and error.code in LOST_DEVICE_CODES:
            return True
        text = str(error)
        if "CUDA error" in text and any(word in text for word in ("illegal", "misaligned", "unspecified", "ECC")):
            return True  # torch's own words
        error = error.__cause__ or error.__context__
    return False


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
