"""The kit itself: real backends pass, what is expected is respected, and nothing passes because nothing ran."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.testing import CaseResult, Outcome, Report, read_expectations, run
from aethermind.testing.run import run_suites


@pytest.mark.parametrize(("backend", "suites"), [("cpu", ["hal", "models"]), ("numpy", ["hal"]), ("null", ["hal"])])
def test_backends_of_this_project_conform(backend: str, suites: list[str]) -> None:
    report = run_suites(backend, suites=suites)
    assert [(case.name, case.reason) for case in report.failures] == []
    assert report.is_ok
    assert report.executed > 70
    assert report.level == "full"


def test_kernels_of_the_cpu_by_the_kit() -> None:
    """All of them are compared in tests/cpu; here, that the kit finds them."""
    report = run_suites("cpu", suites=["operators"], keyword="rms_norm or operator_without")
    assert report.level == "full"
    assert {"cpu/portable"} <= {case.name.split("-")[1] for case in report.cases if case.name.count("-") > 2}


def test_nothing_executed_is_a_failure() -> None:
    report = run_suites("numpy", suites=["hal"], keyword="nowhere")
    assert not report.is_ok
    assert report.level == "none"
    assert report.problems == ["No case was executed, which proves nothing."]


def test_what_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "conformance.toml"
    path.write_text(
        '[[unsupported]]\ncases = "hal.elapsed_time_runs*"\nreason = "no clock"\n'
        '[[expected_failure]]\ncases = "hal.a_new_stream*"\nreason = "streams come later"\n'
        '[[unsupported]]\ncases = "hal.nothing*"\nreason = "out of date"\n'
    )
    report = run_suites("numpy", suites=["hal"], expectations=str(path), keyword="elapsed_time_runs or a_new_stream")
    outcomes = {case.name: (case.outcome, case.reason) for case in report.cases}
    assert outcomes == {
        "hal.elapsed_time_runs_forward": (Outcome.UNSUPPORTED, "no clock"),
        "hal.a_new_stream_is_idle": (
            Outcome.UNEXPECTED_PASS,
            "It passes now; take it out of the expectations.",
        ),
    }
    assert report.problems == ["The expectation for 'hal.nothing*' matches no case. Take it out, or mend it."]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[unsupported]]\ncases = 'a'\n", "exactly `cases` and `reason`"),
        ("[[unsupported]]\ncases = 'a'\nreason = ' '\n", "neither may be empty"),
        ("[unsupported]\ncases = 'a'\nreason = 'b'\n", "two brackets"),
        ("[[skipped]]\n", "has 'skipped'"),
        ("=", "is not TOML"),
    ],
)
def test_expectations_that_are_none(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "conformance.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_expectations(path)


def test_levels_of_a_report() -> None:
    def level(*cases: CaseResult) -> tuple[bool, str]:
        report = Report("toy", "1", list(cases))
        return report.is_ok, report.level

    passed, optional = CaseResult("hal.a", Outcome.PASSED), CaseResult("m.b", Outcome.UNSUPPORTED, is_required=False)
    assert level() == (False, "none")
    assert level(passed) == (True, "full")
    assert level(passed, optional) == (True, "required")
    assert level(passed, CaseResult("hal.c", Outcome.UNSUPPORTED)) == (True, "none")
    assert level(passed, CaseResult("hal.c", Outcome.EXPECTED_FAILURE)) == (True, "none")
    assert level(passed, CaseResult("hal.c", Outcome.FAILED, is_required=False)) == (False, "none")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="Unknown device 'nochip'"):
        run_suites("nochip", suites=["hal"])


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.touch()
    pieces = ['{"problem": "o', "ne", '"}\n{"running', '": "hal"}\n{"prob']

    class Writer:
        def wait(self, timeout: float) -> int:
            if not pieces:
                return 0
            with path.open("a", encoding="utf-8") as file:
                file.write(pieces.pop(0))
            raise subprocess.TimeoutExpired("a suite", timeout)

    report = Report("a-chip", "0")
    assert run._follow(Writer(), path, report, 60, lambda case: None) == "hal"  # type: ignore[arg-type]
    assert report.problems == ["one"]
