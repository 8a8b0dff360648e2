"""What a backend does not do, in its author's words: `conformance.toml` beside the module that implements it.

    [[unsupported]]                       # for good: the case is not run
    cases = "operators.*-float16-*"
    reason = "the chip has no float16"

    [[expected_failure]]                  # to shrink: the case is run, and passing is a failure of this list
    cases = "hal.test_elapsed_time*"
    reason = "events have no clock before firmware 2"

`cases` is a shell pattern over names of cases, as the report prints them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from aethermind.errors import ConfigError

__all__ = ["Expectation", "Expectations", "read_expectations"]

Kind = Literal["unsupported", "expected_failure"]
_KINDS: tuple[Kind, ...] = ("unsupported", "expected_failure")


@dataclass(frozen=True, slots=True)
class Expectation:
    """Cases that are not expected to pass, and why."""

    kind: Kind
    cases: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expectations:
    """All of a backend's; the first that matches a case is the one that counts."""

    entries: tuple[Expectation, ...] = ()

    def find(self, case: str) -> Expectation | None:
        """What is said of a case, if anything."""
        return next((entry for entry in self.entries if fnmatchcase(case, entry.cases)), None)

    def unused(self, cases: list[str]) -> list[Expectation]:
        """Those that match none of these cases: a list that only grows hides what it was made for."""
        return [entry for entry in self.entries if not any(fnmatchcase(case, entry.cases) for case in cases)]


def read_expectations(path: Path) -> Expectations:
    """Read a file of them; ConfigError says what is wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Pass --expectations another file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    if unknown := sorted(content.keys() - set(_KINDS)):
        raise ConfigError(f"{path} has {unknown[0]!r}; it may hold {' and '.join(f'[[{kind}]]' for kind in _KINDS)}.")
    return Expectations(
        tuple(_read_entry(path, kind, entry) for kind in _KINDS for entry in _entries(path, content, kind))
    )


def _entries(path: Path, content: Mapping[str, Any], kind: Kind) -> list[Any]:
    entries = content.get(kind, [])
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: write [[{kind}]], with two brackets, for each entry.")
    return entries


def _read_entry(path: Path, kind: Kind, entry: Any) -> Expectation:
    if not isinstance(entry, Mapping) or entry.keys() != {"cases", "reason"}:
        raise ConfigError(f"{path}: every [[{kind}]] has exactly `cases` and `reason`.")
    if not all(isinstance(value, str) and value.strip() for value in entry.values()):
        raise ConfigError(f"{path}: `cases` and `reason` of [[{kind}]] are texts, and neither may be empty.")
    return Expectation(kind, entry["cases"], entry["reason"])
