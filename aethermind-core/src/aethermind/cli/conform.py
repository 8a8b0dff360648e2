"""`aethermind conform`: the conformance kit for backends and for families of models."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from aethermind.cli import console, options
from aethermind.cli.flags import is_on_command_line
from aethermind.cli.output_files import check_writable, writing
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.runtime import Runtime
    from aethermind.testing.report import CaseResult, Report

__all__ = ["EXAMPLES", "conform"]

EXAMPLES = console.examples(
    "aethermind conform numpy --suite hal",
    "aethermind conform cpu --suite models -k greedy --json",
    "aethermind conform llama --device cpu",
)

_MAX_SHOWN = 20

_NO_FAMILY_FLAGS = {
    "suite": "a model package has one suite.",
    "model": "the models of a model package are its own.",
    "compare": "a model package is compared with transformers.",
}
"""Flags that do not apply to a model package, with the reason."""
_NO_DEVICE_FLAGS = {"device": "it is a device itself."}
"""Flags that do not apply to a device, with the reason."""


def conform(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A device, such as cpu or mychip:1, or a model package or architecture, such as llama.",
        ),
    ],
    suite: Annotated[
        list[str] | None,
        typer.Option(help="Run only this suite: hal, operators or models. May be given several times."),
    ] = None,
    keyword: Annotated[str | None, typer.Option("-k", help="Run cases whose names match, as pytest's -k does.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="The model for the models suite.")] = "demo",
    device: Annotated[str, typer.Option(help="The device on which the models of a model package run.")] = "numpy",
    expectations: Annotated[
        Path | None,
        typer.Option(help="File that lists the cases expected to fail; by default conformance.toml in the package."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="When a case fails, run --model here and on this device, and show the first value that differs.",
        ),
    ] = None,
    badge: Annotated[Path | None, typer.Option(help="Write a badge for a README to this SVG file.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the full output of failing cases.")] = False,
    exit_first: Annotated[bool, typer.Option("--exitfirst", "-x", help="Stop at the first case that fails.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a case has failed.")] = 600,
    as_json: options.AsJson = False,
) -> None:
    """Check a device or a model package with the conformance kit.

    The suites for a device check memory and streams, every kernel, and whole models. For a model package, small random
    models of its families are compared with transformers. A selection (--suite, -k) has no conformance level. The exit
    code is 1 if a case fails, if none ran, or if something that every backend must do is declared unsupported.
    """
    from aethermind.runtime import Runtime
    from aethermind.testing.run import SUITES, run_family, run_suites

    runtime = Runtime.boot()
    is_family = _is_family(runtime, name)
    _check_flags(ctx, name, _NO_FAMILY_FLAGS if is_family else _NO_DEVICE_FLAGS)
    suites = _checked_suites(suite or SUITES, SUITES)
    if "models" in suites and not is_family:
        runtime.open_source(model)
    if compare is not None:
        runtime.devices.select(compare)
    if badge is not None:
        check_writable(badge, "Badge")
    selection: dict[str, Any] = {
        "expectations": None if expectations is None else str(expectations),
        "keyword": keyword,
        "stop_at_failure": exit_first,
        "timeout_s": timeout,
    }
    with _Progress(not as_json) as progress:
        if is_family:
            report = run_family(name, device=device, on_case=progress, **selection)
        else:
            report = run_suites(name, suites=suites, model=model, on_case=progress, **selection)
    if badge is not None:
        with writing(badge, "Badge"):
            badge.write_text(report.badge(), encoding="utf-8")
    if as_json:
        console.print_json(report.record())
    else:
        _print(report, verbose)
    if not report.is_ok and compare is not None and not as_json and not is_family:
        _compare(model, compare, name)
    raise typer.Exit(report.exit_code)


def _is_family(runtime: Runtime, name: str) -> bool:
    """Whether a name is a model package or an architecture; a device of that name has precedence."""
    from aethermind.testing.families.case import architectures_of

    is_device = any(entry.name == name.partition(":")[0] for entry in runtime.devices)
    return not is_device and bool(architectures_of(runtime, name))


def _check_flags(ctx: typer.Context, name: str, reasons: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError for a flag in `reasons`, which maps flags without effect to the reason."""
    for parameter, reason in reasons.items():
        if is_on_command_line(ctx, parameter):
            raise InvalidArgumentError(f"--{parameter} has no effect on {name}: {reason} Leave it out.")


def _checked_suites(suites: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    for name in suites:
        if name not in known:
            raise InvalidArgumentError(f"There is no suite {name!r}; pass --suite {', '.join(known)}.")
    return suites


class _Progress:
    """Shows the number of cases on a line of the terminal."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_shown = is_wanted and console.is_terminal(sys.stderr)
        self._num_cases = self._num_failed = 0

    def __call__(self, case: CaseResult) -> None:
        self._num_cases += 1
        self._num_failed += case.outcome in ("failed", "unexpected_pass")
        if self._is_shown:
            failed = f", {self._num_failed} failed" if self._num_failed else ""
            sys.stderr.write(f"\r\x1b[K{self._num_cases} cases{failed}  {case.name:.60}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")


def _print(report: Report, verbose: bool) -> None:
    from aethermind.testing.report import Outcome

    header = ("suite", "passed", "failed", "unsupported", "expected failures")
    rows: list[tuple[str, ...]] = [header]
    for name in [*report.suites, "all"]:
        chosen = None if name == "all" else name
        failed = report.count(Outcome.FAILED, chosen) + report.count(Outcome.UNEXPECTED_PASS, chosen)
        counts = [
            report.count(outcome, chosen) for outcome in (Outcome.PASSED, Outcome.UNSUPPORTED, Outcome.EXPECTED_FAILURE)
        ]
        rows.append((name, *map(str, (counts[0], failed, *counts[1:]))))
    print(console.columns(rows, indent=""))
    foreign = [case for case in report.failures if case.is_foreign and not report.is_selection]
    for title, cases in (
        ("Failed", [case for case in report.failures if case not in foreign]),
        ("Failed, of operators of other packages, which do not count", foreign),
        ("Unsupported", [case for case in report.cases if case.outcome is Outcome.UNSUPPORTED]),
        ("Expected failures", [case for case in report.cases if case.outcome is Outcome.EXPECTED_FAILURE]),
    ):
        if cases:
            print(f"\n{title}:")
            print(console.columns((case.name, case.reason) for case in cases[:_MAX_SHOWN]))
        if len(cases) > _MAX_SHOWN:
            print(f"  and {len(cases) - _MAX_SHOWN} more; --json lists all")
    if verbose:
        for case in report.failures:
            print(f"\n{case.name}\n{case.details}")
    for problem in report.problems:
        print(f"\n{console.style(problem, 'red', sys.stdout)}")
    meaning = {
        "full": "everything passed",
        "required": "all that is required is done; some of the rest is not there",
        "none": "something failed, or not all that is required is done",
    }
    if report.level is None:
        state = "passed" if report.is_ok else console.style("failed", "red", sys.stdout)
        print(f"\n{report.backend}: selection {state}, no level: --suite and -k leave out a part of the kit.")
        return
    colour = "red" if report.level == "none" else "green"
    print(f"\n{report.backend}: level {console.style(report.level, colour, sys.stdout)}, {meaning[report.level]}.")


def _compare(model: str, reference: str, tested: str) -> None:
    from aethermind.cli.diff import DEFAULT_PROMPT, diff, print_diff

    print()
    print_diff(diff(model, (reference, tested), DEFAULT_PROMPT, 8, fuse=True, rtol=None, atol=None, dtype="float32"))
