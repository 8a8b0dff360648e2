"""The report of a conformance run: its results, and the failures that a backend's author expects.

The latter are in `conformance.toml`, beside the module that implements the backend:

    [[unsupported]]                       # permanent: the case is not run
    cases = "operators.*-float16-*"
    reason = "the chip has no float16"

    [[expected_failure]]                  # temporary: the case is run, and passing is a failure of this list
    cases = "hal.elapsed_time*"
    reason = "events have no clock before firmware 2"

`cases` is a shell pattern over names of cases, as the report prints them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from aethermind.errors import ConfigError

__all__ = ["CaseResult", "Expectation", "Expectations", "Outcome", "Report", "read_expectations"]

Kind = Literal["unsupported", "expected_failure"]
_KINDS: tuple[Kind, ...] = ("unsupported", "expected_failure")
_RENAMED_CASES = {
    "hal.stats_count_what_is_handed_out": "hal.stats_count_allocations",
    "hal.running_out_of_memory_is_said_and_counts_nothing": "hal.a_failed_allocation_raises_and_is_not_counted",
    "hal.what_goes_to_the_device_comes_back": "hal.a_copy_to_the_device_and_back_is_exact",
    "hal.an_event_that_was_never_recorded_counts_as_reached": "hal.an_event_that_was_never_recorded_is_complete",
    "hal.an_event_is_reached_after_the_work_before_it": "hal.an_event_completes_after_the_work_before_it",
    "hal.an_event_behind_work_is_reached_after_it": "hal.an_event_behind_pending_work_completes_after_it",
    "hal.an_event_that_is_not_reached_has_no_time": "hal.an_incomplete_event_has_no_elapsed_time",
    "hal.a_stream_waits_for_the_mark_as_it_was": "hal.a_stream_waits_for_an_event_as_last_recorded",
    "hal.what_names_no_stream_is_done_on_return": "hal.calls_without_a_stream_are_synchronous",
    "hal.memory_is_handed_out_to_several_threads": "hal.several_threads_allocate_memory",
    "hal.memory_goes_back_to_where_it_came_from": "hal.freed_memory_returns_to_the_system",
    "hal.streams_and_events_are_given_back": "hal.destroyed_streams_and_events_are_freed",
    "models.requests_that_give_way_and_are_computed_again": "models.preempted_requests_that_are_recomputed",
    "models.memory_is_given_back": "models.memory_is_freed",
    "models.fewer_bits": "models.quantised_weights",
}
"""Former names of cases, which expectation files may still contain, with their present names."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Cases that are not expected to pass, and the reason."""

    kind: Kind
    cases: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expectations:
    """The expectations for a backend; the first one that matches a case counts."""

    entries: tuple[Expectation, ...] = ()

    def find(self, case: str) -> Expectation | None:
        """Return the expectation for a case, if any."""
        return next((entry for entry in self.entries if fnmatchcase(case, entry.cases)), None)

    def unused(self, cases: list[str]) -> list[Expectation]:
        """Return the expectations that match none of these cases, which should be removed."""
        return [entry for entry in self.entries if not any(fnmatchcase(case, entry.cases) for case in cases)]


def read_expectations(path: Path) -> Expectations:
    """Read a file of expectations; ConfigError where it is malformed."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Pass another file as --expectations.") from None
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
    cases = entry["cases"]
    for old, new in _RENAMED_CASES.items():
        cases = cases.replace(old, new)
    return Expectation(kind, cases, entry["reason"])


class Outcome(StrEnum):
    """The outcome of a case. `UNEXPECTED_PASS` is a failure: the list of expectations is out of date."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    EXPECTED_FAILURE = "expected_failure"
    UNEXPECTED_PASS = "unexpected_pass"


_FAILURES = (Outcome.FAILED, Outcome.UNEXPECTED_PASS)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case, called `suite.test[parameters]`.

    `is_required` says that every backend must pass the case. `is_foreign` says that a package other than the core and
    the backend's defines its operator, so that the case does not count. `reason` is a sentence for every outcome but
    PASSED, `details` the whole output of a failed test.
    """

    name: str
    outcome: Outcome
    is_required: bool = True
    reason: str = ""
    details: str = ""
    seconds: float = 0.0
    is_foreign: bool = False

    @property
    def suite(self) -> str:
        """The suite of the case."""
        return self.name.partition(".")[0]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CaseResult:
        """Return a result from its fields as JSON."""
        return cls(**{**record, "outcome": Outcome(record["outcome"])})


@dataclass(slots=True)
class Report:
    """The results of one backend, in order. Mutable: cases are added as they end.

    `is_selection` says that only a part of the kit was run: there is no level, and all cases count.
    """

    backend: str
    version: str
    cases: list[CaseResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Problems of the run itself: a process that crashed, expectations that match no case."""
    is_selection: bool = False

    @property
    def executed(self) -> int:
        """The number of cases that ran."""
        return sum(case.outcome is not Outcome.UNSUPPORTED for case in self.cases)

    @property
    def failures(self) -> list[CaseResult]:
        """The cases that failed, or passed although they were expected to fail."""
        return [case for case in self.cases if case.outcome in _FAILURES]

    @property
    def is_ok(self) -> bool:
        """Whether some case ran, and all cases that count have the expected outcome."""
        return self.executed > 0 and not any(map(self._counts, self.failures)) and not self.problems

    @property
    def level(self) -> str | None:
        """`full` where all cases passed, `required` where the required ones did, else `none`; None for a selection."""
        if self.is_selection:
            return None
        not_passed = [case for case in self.cases if case.outcome is not Outcome.PASSED and self._counts(case)]
        if not self.is_ok or any(case.is_required for case in not_passed):
            return "none"
        return "required" if not_passed else "full"

    @property
    def exit_code(self) -> int:
        """0 where a level was reached, or all cases of a selection have the expected outcome; else 1."""
        return 0 if self.is_ok and self.level != "none" else 1

    def _counts(self, case: CaseResult) -> bool:
        return self.is_selection or not case.is_foreign

    @property
    def suites(self) -> list[str]:
        """The suites of the cases, in order."""
        return list(dict.fromkeys(case.suite for case in self.cases))

    def count(self, outcome: Outcome, suite: str | None = None) -> int:
        """Return the number of cases with an outcome, of one suite or of all."""
        return sum(case.outcome is outcome for case in self.of_suite(suite))

    def of_suite(self, suite: str | None) -> Iterable[CaseResult]:
        """Return the cases of one suite, or all."""
        return (case for case in self.cases if suite in (None, case.suite))

    def record(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {
            "backend": self.backend,
            "version": self.version,
            "ok": self.is_ok,
            "level": self.level,
            "executed": self.executed,
            "passed": self.count(Outcome.PASSED),
            "failed": len(self.failures),
            "unsupported": self.count(Outcome.UNSUPPORTED),
            "expected_failures": self.count(Outcome.EXPECTED_FAILURE),
            "problems": self.problems,
            "cases": [asdict(case) for case in self.cases],
        }

    def badge(self) -> str:
        """Return a badge for a README, as SVG: the level, and how many of the cases passed; grey for a selection."""
        color = {"none": "#cf222e", None: "#6e7781"}.get(self.level, "#2da44e")
        label, state = (
            f"conforms to aethermind {self.version}",
            f"{self.level or 'no level, a selection'} {self.count(Outcome.PASSED)}/{self.executed}",
        )
        widths = [7 * len(text) + 12 for text in (label, state)]
        parts = "".join(
            f'<rect x="{x}" width="{width}" height="20" fill="{fill}"/>'
            f'<text x="{x + width / 2}" y="14" fill="#fff" text-anchor="middle">{text}</text>'
            for x, width, fill, text in ((0, widths[0], "#555", label), (widths[0], widths[1], color, state))
        )
        font = "font-family='Verdana,sans-serif' font-size='11'"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{sum(widths)}" height="20"><g {font}>{parts}</g></svg>\n'
        )
