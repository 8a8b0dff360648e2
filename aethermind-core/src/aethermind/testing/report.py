"""What a run of the kit found: one result a case, their counts, and the level that a backend reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["CaseResult", "Outcome", "Report"]


class Outcome(StrEnum):
    """What became of a case. `UNEXPECTED_PASS` is a failure: the list of expectations is out of date."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    EXPECTED_FAILURE = "expected_failure"
    UNEXPECTED_PASS = "unexpected_pass"


_BAD = (Outcome.FAILED, Outcome.UNEXPECTED_PASS)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case, called `suite.what[parameters]`; whether every backend must pass it, and what was found.

    `is_foreign` says that it is about an operator that neither the core nor the backend's package has: what another
    package lets this one do says nothing of the backend. `reason` is a sentence for whatever did not pass, `details`
    the whole of what a failing test said.
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
        """The part of the kit that the case belongs to."""
        return self.name.partition(".")[0]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CaseResult:
        """The case whose fields, as JSON has them, are these."""
        return cls(**{**record, "outcome": Outcome(record["outcome"])})


@dataclass(slots=True)
class Report:
    """All results of one backend, in the order in which they came. Mutable: cases are added as they end.

    `is_selection` says that only some of the kit was asked for: that has no level, and all that ran counts.
    """

    backend: str
    version: str
    cases: list[CaseResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong with the run itself: a process that died, expectations that match no case."""
    is_selection: bool = False

    @property
    def executed(self) -> int:
        """Cases that ran."""
        return sum(case.outcome is not Outcome.UNSUPPORTED for case in self.cases)

    @property
    def failures(self) -> list[CaseResult]:
        """Cases that failed, or passed although they are said not to."""
        return [case for case in self.cases if case.outcome in _BAD]

    @property
    def is_ok(self) -> bool:
        """Something ran, and all of it that counts went as the backend's author says."""
        return self.executed > 0 and not any(map(self._counts, self.failures)) and not self.problems

    @property
    def level(self) -> str | None:
        """`full` where everything passed, `required` where what every backend must pass did, else `none`; None, not
        the word, for a selection.
        """
        if self.is_selection:
            return None
        short = [case for case in self.cases if case.outcome is not Outcome.PASSED and self._counts(case)]
        if not self.is_ok or any(case.is_required for case in short):
            return "none"
        return "required" if short else "full"

    @property
    def exit_code(self) -> int:
        """0 where a level was reached, or all of a selection went as it should; else 1."""
        return 0 if self.is_ok and self.level != "none" else 1

    def _counts(self, case: CaseResult) -> bool:
        return self.is_selection or not case.is_foreign

    @property
    def suites(self) -> list[str]:
        """The suites that have cases, in order."""
        return list(dict.fromkeys(case.suite for case in self.cases))

    def count(self, outcome: Outcome, suite: str | None = None) -> int:
        """Cases with an outcome, of one suite or of all."""
        return sum(case.outcome is outcome for case in self.of_suite(suite))

    def of_suite(self, suite: str | None) -> Iterable[CaseResult]:
        """The cases of one suite, or all."""
        return (case for case in self.cases if suite in (None, case.suite))

    def record(self) -> dict[str, Any]:
        """The report for machines."""
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
        """A badge for a README, as SVG: the level, and how many of the cases that ran passed; grey for a selection."""
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
