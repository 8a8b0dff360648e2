"""The kit finds every planted bug, in the part of it that is about the bug's place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.conformance import mutants
from tests.conformance.format_mutants import FORMAT_BUGS, right

from aethermind.testing import Report
from aethermind.testing.run import run_suites

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants as a distribution, for the processes that the kit starts."""
    info = tmp_path / "mutants-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mutants\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[aethermind.plugins.v2]\nmutants = tests.conformance.mutants\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))


def run(device: str, suites: Sequence[str], keyword: str | None = None) -> Report:
    report = run_suites(device, suites=suites, keyword=keyword)
    assert report.executed > 0
    return report


def test_a_device_that_runs_late_and_has_no_bug_conforms() -> None:
    report = run("late", ["hal"])
    assert report.failures == []
    assert report.exit_code == 0


@pytest.mark.parametrize("number", range(len(mutants.GENERATIONS)))
def test_bugs_in_kernels(number: int) -> None:
    """Each of a generation's operators has a failing case, and no other has."""
    bugs = mutants.GENERATIONS[number]
    names = " or ".join(f"kernel[{operator}-" for operator in bugs)
    report = run(f"generation-{number}", ["operators"], names)
    assert {case.name.partition("[")[2].partition("-")[0] for case in report.failures} == set(bugs)
    assert report.exit_code == 1


def test_bugs_in_weight_formats() -> None:
    """Each format is judged by itself: those that are packed right pass beside those that are not."""
    report = run("formats", ["operators"], "mutant")
    formats = {name for name, bug in FORMAT_BUGS.items() if bug is not right}
    assert {case.name.split("-")[1].partition(" ")[0] for case in report.failures} == formats
    for operator in ("linear", "lm_head"):
        assert {case.name.split("-")[1] for case in report.cases if f"[{operator}-" in case.name} == {
            f"{name} mutant" for name in FORMAT_BUGS
        }


@pytest.mark.parametrize("bug", mutants.PART_BUGS)
def test_bugs_in_parts(bug: str) -> None:
    assert run(f"mutant-{bug}", ["hal"]).failures


def test_a_backend_that_brings_its_process_down_has_failed_a_case() -> None:
    report = run("mutant-crash", ["hal"])
    (failed,) = report.failures
    assert failed.reason == "The process died of signal 11 in this case."
    assert report.problems == [f"The run ended at {failed.name}; what comes after it was not tried."]


def test_a_process_that_dies_between_cases_fails_the_case_before() -> None:
    report = run("mutant-late-crash", ["hal"])
    (failed,) = report.failures
    assert failed.reason == "The process died of signal 11 after this case, which may have written beyond its memory."
    assert report.exit_code == 1


@pytest.mark.parametrize("bug", mutants.MODEL_BUGS)
def test_bugs_that_only_models_show(bug: str) -> None:
    assert run(f"mutant-{bug}", ["models"], "share_a_prompt").failures
