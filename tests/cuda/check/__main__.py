"""`python -m tests.cuda.check`: run what needs a GPU and print a table.

Exits with 1 when something failed, and with 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.cuda.check.running import Outcome, execute, run_steps, table
from tests.cuda.check.tree import python_path

ROOT = Path(__file__).parents[3]
BUDGET_S = 450.0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for everything")
    parser.add_argument("--only", default="", help="run the steps whose titles contain this")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "cuda-check", help="where output is kept")
    arguments = parser.parse_args()
    arguments.log.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    paths = [ROOT, *python_path(ROOT, arguments.log / "site")]
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([known] if known else [])])
    sys.path[:0] = map(str, paths)
    from tests.cuda.check.steps import describe_machine, reason_against_machine, steps

    reason = reason_against_machine()
    if reason is not None:
        print(f"There is nothing to check CUDA on: {reason}")
        return 2
    header = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), **describe_machine(), "commit": _commit()}
    wanted = [step for step in steps(arguments.log) if arguments.only in step.title]
    results = []
    for result in run_steps(
        wanted,
        arguments.budget - (time.monotonic() - began),
        lambda step, limit: execute(step, limit, arguments.log / f"{step.title.replace(' ', '-')}.log"),
    ):
        print(f"… {result.title}: {result.outcome.value} ({result.seconds:.0f} s)", flush=True)
        results.append(result)
    text = table(header, results)
    print("\n" + text)
    (arguments.log / "table.txt").write_text(text + "\n")
    is_fine = all(result.outcome in (Outcome.PASSED, Outcome.SKIPPED) for result in results)
    return 0 if is_fine else 1


def _commit() -> str:
    answer = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%h"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or "not a repository"


if __name__ == "__main__":
    sys.exit(main())
