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
    assert report.executed > 80
    assert (report.level, report.exit_code) == (None, 0)


def test_kernels_of_the_cpu_by_the_kit() -> None:
    """All of them are compared in tests/cpu; here, that the kit finds them."""
    report = run_suites("cpu", suites=["operators"], keyword="rms_norm or operator_without")
    assert (report.failures, report.problems) == ([], [])
    assert {"cpu/portable"} <= {case.name.split("-")[1] for case in report.cases if case.name.count("-") > 2}


def test_references_that_claim_batch_invariance_keep_it() -> None:
    report = run_suites("numpy", suites=["operators"], keyword="in_any_batch")
    assert ([(case.name, case.reason) for case in report.failures], report.problems) == ([], [])
    assert report.executed > 100


def test_nothing_executed_is_a_failure() -> None:
    report = run_suites("numpy", suites=["hal"], keyword="nowhere")
    assert not report.is_ok
    assert (report.level, report.exit_code) == (None, 1)
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
            "It passes now; remove it from the expectations.",
        ),
    }
    assert report.problems == ["The expectation for 'hal.nothing*' matches no case. Remove or correct it."]


def test_expectations_may_have_former_names_of_cases(tmp_path: Path) -> None:
    path = tmp_path / "conformance.toml"
    path.write_text('[[unsupported]]\ncases = "models.fewer_bits*"\nreason = "no integers"\n')
    found = read_expectations(path).find("models.quantised_weights[int4]")
    assert found is not None
    assert found.reason == "no integers"


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
    def level(*cases: CaseResult) -> tuple[bool, str | None]:
        report = Report("toy", "1", list(cases))
        assert report.exit_code == (0 if report.level in ("full", "required") else 1)
        assert ("#2da44e" in report.badge()) == (report.exit_code == 0)
        return report.is_ok, report.level

    passed, optional = CaseResult("hal.a", Outcome.PASSED), CaseResult("m.b", Outcome.UNSUPPORTED, is_required=False)
    assert level() == (False, "none")
    assert level(passed) == (True, "full")
    assert level(passed, optional) == (True, "required")
    assert level(passed, CaseResult("hal.c", Outcome.UNSUPPORTED)) == (True, "none")
    assert level(passed, CaseResult("hal.c", Outcome.EXPECTED_FAILURE)) == (True, "none")
    assert level(passed, CaseResult("hal.c", Outcome.FAILED, is_required=False)) == (False, "none")


def test_what_is_about_another_packages_operators_does_not_count() -> None:
    passed = CaseResult("hal.a", Outcome.PASSED)
    foreign = CaseResult("operators.kernel[theirs]", Outcome.FAILED, is_foreign=True)
    uncomputed = CaseResult("operators.b", Outcome.UNSUPPORTED, is_required=False, is_foreign=True)
    report = Report("toy", "1", [passed, foreign, uncomputed])
    assert (report.level, report.exit_code, report.failures) == ("full", 0, [foreign])
    assert Report("toy", "1", [passed, foreign], is_selection=True).exit_code == 1


def test_a_selection_has_no_level_and_no_green_badge() -> None:
    report = Report("toy", "1", [CaseResult("hal.a", Outcome.PASSED)], is_selection=True)
    assert (report.level, report.exit_code) == (None, 0)
    assert report.record()["level"] is None
    assert "#2da44e" not in report.badge()


def test_a_case_that_hangs_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('{"running": "hal.hangs"}\n')

    class Hanging:
        is_killed = False

        def wait(self, timeout: float | None = None) -> int:
            if not self.is_killed:
                raise subprocess.TimeoutExpired("a suite", timeout or 0)
            return -9

        def kill(self) -> None:
            self.is_killed = True

    process, report = Hanging(), Report("a-chip", "0")
    assert run._read_results(process, path, report, 0, lambda case: None) == "hal.hangs"  # type: ignore[arg-type]
    assert process.is_killed
    assert report.problems == ["hal.hangs took more than 0 s and was ended (--timeout)."]


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
    assert run._read_results(Writer(), path, report, 60, lambda case: None) == "hal"  # type: ignore[arg-type]
    assert report.problems == ["one"]
