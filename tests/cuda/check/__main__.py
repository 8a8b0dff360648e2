"""`python -m tests.cuda.check`: run what needs a GPU and print a table, of what was done when it is stopped.

Exits with 1 when something failed or was left, and with 2 where there is no GPU or nothing can be run on it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tests.cuda.check.running import Outcome, Result, execute, run_steps, table
from tests.cuda.check.tree import python_path

ROOT = Path(__file__).parents[3]
BUDGET_S = 450.0
SANITIZER_S = 3600.0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, help=f"seconds for everything, {BUDGET_S:.0f} unless told otherwise")
    parser.add_argument("--only", default="", help="run the steps whose titles contain this")
    parser.add_argument("--sanitize", action="store_true", help="every kernel under compute-sanitizer, without hurry")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "cuda-check", help="where output is kept")
    arguments = parser.parse_args()
    arguments.log.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    paths = [ROOT, *python_path(ROOT, arguments.log / "site")]
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([known] if known else [])])
    sys.path[:0] = map(str, paths)
    from tests.cuda.check.steps import describe_machine, reason_against_machine, sanitizing_steps, steps

    reason = reason_against_machine()
    if reason is not None:
        print(f"There is nothing to check CUDA on: {reason}")
        return 2
    all_steps = sanitizing_steps(arguments.log, SANITIZER_S) if arguments.sanitize else steps(arguments.log)
    wanted = [step for step in all_steps if arguments.only in step.title]
    if all(step.reason_against for step in wanted):
        print(f"Nothing can be run: {'; '.join(sorted({str(step.reason_against) for step in wanted}))}.")
        return 2
    budget_s = arguments.budget or (2 * SANITIZER_S if arguments.sanitize else BUDGET_S)
    header = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), **describe_machine(), "commit": _commit()}
    results: list[Result] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        for result in run_steps(
            wanted,
            budget_s - (time.monotonic() - began),
            lambda step, limit: execute(step, limit, arguments.log / f"{step.title.replace(' ', '-')}.log"),
        ):
            print(f"… {result.title}: {result.outcome.value} ({result.seconds:.0f} s) {result.said}", flush=True)
            results.append(result)
            (arguments.log / "table.txt").write_text(table(header, results) + "\n")
    print("\n" + table(header, results))
    is_fine = all(result.outcome in (Outcome.PASSED, Outcome.SKIPPED) for result in results)
    return 0 if is_fine and len(results) == len(wanted) else 1


def _commit() -> str:
    answer = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%h"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or "not a repository"


if __name__ == "__main__":
    sys.exit(main())
