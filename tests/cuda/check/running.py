"""Steps under one budget of time: each in a process of its own, none of which can stop the others."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

__all__ = ["Outcome", "Result", "Step", "execute", "run_steps", "table"]

_LEAST_S = 5.0
"""With less time left than this a step is not begun, and as much is left to each that follows."""


class Outcome(Enum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED OUT"
    SKIPPED = "skipped"
    NO_TIME = "no time"


@dataclass(frozen=True)
class Step:
    """A command, the most seconds it may take, and why it cannot run here (None where it can).

    `min_s` is what steps before it leave to it, however long they take: how long it should take on a fast card.
    Without one that `is_needed` those behind it say nothing, and are left out.
    """

    title: str
    command: Sequence[str]
    limit_s: float
    reason_against: str | None = None
    min_s: float = _LEAST_S
    environment: dict[str, str] = field(default_factory=dict)
    is_needed: bool = False


@dataclass(frozen=True)
class Result:
    """What came of a step, and the last thing it said."""

    title: str
    outcome: Outcome
    seconds: float
    said: str


Execute = Callable[[Step, float], tuple[int | None, str]]
"""Runs a step for so many seconds; the exit status (None where it ran out of time) and what it printed."""


def run_steps(
    steps: Sequence[Step], budget_s: float, execute: Execute, clock: Callable[[], float] = time.monotonic
) -> Iterator[Result]:
    """Run all steps in order; a result each, as they end. None takes the time that those behind it need at least."""
    end = clock() + budget_s
    missed: str | None = None
    for position, step in enumerate(steps):
        reason = step.reason_against or missed
        if reason is not None:
            yield Result(step.title, Outcome.SKIPPED, 0.0, reason)
            continue
        began = clock()
        kept = sum(later.min_s for later in steps[position + 1 :] if later.reason_against is None)
        limit = min(step.limit_s, max(end - began - kept, min(step.min_s, end - began)))
        if limit < min(_LEAST_S, step.limit_s):
            yield Result(step.title, Outcome.NO_TIME, 0.0, f"the budget of {budget_s:.0f} s was spent")
            continue
        status, output = execute(step, limit)
        outcome = {None: Outcome.TIMED_OUT, 0: Outcome.PASSED}.get(status, Outcome.FAILED)
        if step.is_needed and outcome is not Outcome.PASSED:
            missed = f"it needs what `{step.title}` did not do"
        yield Result(step.title, outcome, clock() - began, _last_words(output))


def execute(step: Step, limit_s: float, log: Path) -> tuple[int | None, str]:
    """Run it in a session of its own, which ends with it; everything it prints is appended to `log` as it comes."""
    environment = {**os.environ, **step.environment, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as stream:
        stream.write(f"== {step.title}\n".encode())
        stream.flush()
        begin = stream.tell()
        process = subprocess.Popen(
            step.command, stdout=stream, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_session(process)
            os.fsync(stream.fileno())
    with log.open("rb") as stream:
        stream.seek(begin)
        return status, stream.read().decode(errors="replace")


def table(header: dict[str, str], results: Sequence[Result]) -> str:
    """The machine, and a line for each step."""
    width = max((len(result.title) for result in results), default=0)
    top = [f"{name + ':':<10} {value}" for name, value in header.items()]
    lines = [
        f"{result.title:<{width}}  {result.outcome.value:<9}  {result.seconds:6.1f} s  {result.said}"
        for result in results
    ]
    return "\n".join([*top, "", *lines])


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Its children included."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(output: str) -> str:
    lines = [re.sub(r"^=+ | =+$", "", line.strip()) for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
