"""Runs the suites in a child process. If a backend crashes that process, a case has failed, and this one continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind.first_party import pip_install_command
from aethermind.testing.report import CaseResult, Outcome, Report

__all__ = ["SUITES", "TIMEOUT_S", "run_family", "run_suites"]

SUITES = ("hal", "operators", "models")
TIMEOUT_S = 600.0
"""The time limit of a case, in seconds."""
_USAGE_ERROR = 4  # of pytest
_POLL_S = 0.1


def run_suites(
    backend: str,
    *,
    suites: Sequence[str] = SUITES,
    model: str = "demo",
    expectations: str | None = None,
    keyword: str | None = None,
    stop_at_failure: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_case: Callable[[CaseResult], None] = lambda _: None,
) -> Report:
    """Run the kit on a device and return the report.

    `on_case` is called with each result, `keyword` selects cases as pytest's -k does, and `stop_at_failure` ends the
    run at the first failure. A case that takes longer than `timeout_s` has failed, and ends the run.

    InvalidArgumentError for an unknown device, model or file, and where pytest is not installed.
    """
    options = ["--backend", backend, "--conformance-model", model]
    return _run(backend, suites, options, expectations, keyword, stop_at_failure, timeout_s, on_case)


def run_family(
    name: str,
    *,
    device: str = "numpy",
    expectations: str | None = None,
    keyword: str | None = None,
    stop_at_failure: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_case: Callable[[CaseResult], None] = lambda _: None,
) -> Report:
    """Run the kit on the models of a plugin, package or architecture; see `run_suites`."""
    options = ["--model-package", name, "--backend", device]
    return _run(name, ["families"], options, expectations, keyword, stop_at_failure, timeout_s, on_case)


def _run(
    subject: str,
    suites: Sequence[str],
    options: Sequence[str],
    expectations: str | None,
    keyword: str | None,
    stop_at_failure: bool,
    timeout_s: float,
    on_case: Callable[[CaseResult], None],
) -> Report:
    if find_spec("pytest") is None:
        raise InvalidArgumentError(f"The kit needs pytest. Run `{pip_install_command('aethermind-core[testing]')}`.")
    is_selection = keyword is not None or (suites != ["families"] and set(suites) != set(SUITES))
    report = Report(subject, version("aethermind-core"), is_selection=is_selection)
    with TemporaryDirectory() as folder:
        results, output = Path(folder, "cases.jsonl"), Path(folder, "output.txt")
        results.touch()
        folder_of_suites = Path(__file__).parent / "suites"
        files = [str(path) for suite in suites for path in sorted(folder_of_suites.glob(f"test_{suite}*.py"))]
        command = [sys.executable, "-m", "aethermind.testing", *files, *options]
        command += ["--conformance-report", str(results), "--tb=short", "-q", "--no-header"]
        command += [] if expectations is None else ["--expectations", expectations]
        command += [] if keyword is None else ["-k", keyword]
        command += ["--exitfirst"] if stop_at_failure else []
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the kit needs no other pytest plugins
        with (
            output.open("w") as stream,
            subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment) as process,
        ):
            try:
                running = _read_results(process, results, report, timeout_s, on_case)
            except BaseException:
                process.kill()
                raise
        output_text = output.read_text(errors="replace").strip()
    _conclude(report, process.returncode, running, output_text, on_case)
    return report


def _read_results(
    process: subprocess.Popen[bytes],
    path: Path,
    report: Report,
    timeout_s: float,
    on_case: Callable[[CaseResult], None],
) -> str | None:
    """Read results until the process has ended, or is killed because a case takes too long; returns the case that was
    running then.
    """
    running: str | None = None
    started = time.monotonic()
    line = ""
    with path.open(encoding="utf-8") as lines:
        has_ended = False
        while True:
            while part := lines.readline():
                line += part
                if not line.endswith("\n"):  # the rest of it is being written
                    break
                ((kind, value),) = json.loads(line).items()
                line = ""
                if kind == "running":
                    running, started = value, time.monotonic()
                elif kind == "problem":
                    report.problems.append(value)
                else:
                    running = None
                    report.cases.append(result := CaseResult.of(value))
                    on_case(result)
            if has_ended:
                return running
            try:
                process.wait(_POLL_S)
                has_ended = True
            except subprocess.TimeoutExpired:
                if running is not None and time.monotonic() - started > timeout_s:
                    process.kill()
                    process.wait()
                    report.problems.append(f"{running} took more than {timeout_s:g} s and was ended (--timeout).")
                    return running


def _conclude(
    report: Report, status: int, running: str | None, output_text: str, on_case: Callable[[CaseResult], None]
) -> None:
    if status == _USAGE_ERROR:
        raise InvalidArgumentError(
            output_text.splitlines()[-1].removeprefix("ERROR: ") if output_text else "pytest refused to run."
        )
    if status < 0 and running is None and report.cases:
        # Memory that a kernel overwrote is often missed only when the next case, or the interpreter's end, frees it.
        running = report.cases.pop().name
        reason = f"The process died of signal {-status} after this case, which may have written beyond its memory."
    else:
        reason = f"The process died of signal {-status} in this case."
    if status < 0 and running is not None:
        report.cases.append(result := CaseResult(running, Outcome.FAILED, reason=reason, details=output_text))
        on_case(result)
    elif status not in (0, 1, 5) or (status == 1 and not report.failures):
        raise AetherMindError(
            f"The suites could not be run to their end (status {status}). Their output:\n{output_text[-2000:]}"
        )
    if status < 0:
        report.problems.append(f"The run ended at {running}; what comes after it was not tried.")
    if not report.executed:
        report.problems.append("No case was executed, which proves nothing.")
