"""`python -m tests.cuda.check`: run what needs a GPU and print a table, of what was done when it is stopped.

Three files in the folder of --out: `table.txt`, a line a step; `cases.jsonl`, a line a case; `all.log`, everything that
was printed. Each is written as things happen, so that what a broken run found is kept. Called again with --resume, it
leaves out the steps that passed, and the cases that began.

Exits with 1 when something failed or was left, and with 2 where there is no GPU or nothing can be run on it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cuda.check.running import Outcome, Result, Step, execute, run_steps, table
from tests.cuda.check.tree import python_path

ROOT = Path(__file__).parents[3]
BUDGET_S = 580.0
SANITIZER_S = 3600.0
FILES = ("table.txt", "cases.jsonl", "all.log")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, help=f"total seconds, by default {BUDGET_S:.0f}")
    parser.add_argument(
        "--only", default="", help="run the steps whose titles contain one of these, with commas between"
    )
    parser.add_argument("--sanitize", action="store_true", help="every kernel under compute-sanitizer, without hurry")
    parser.add_argument("--samples", default="", help="memcheck and racecheck: those whose names contain one of these")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "cuda-check", help="where the three files go")
    parser.add_argument("--resume", action="store_true", help="go on where a run into the same folder ended")
    parser.add_argument("--commit", help="what is checked, where git does not say")
    parser.add_argument("--small", action="store_true", help="narrow matrices: to rehearse, not to measure")
    arguments = parser.parse_args()
    began = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as site:
        paths = [ROOT, *python_path(ROOT, Path(site))]
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([known] if known else [])])
        sys.path[:0] = map(str, paths)
        return _check(arguments, began)


def _check(arguments: argparse.Namespace, began: float) -> int:
    from tests.cuda.check.machine import describe_machine
    from tests.cuda.check.steps import reason_against_machine, sanitizing_steps, steps

    reason = reason_against_machine()
    if reason is not None:
        print(f"There is nothing to check CUDA on: {reason}")
        return 2
    out: Path = arguments.out.resolve()
    if arguments.sanitize:
        all_steps = sanitizing_steps(out, SANITIZER_S, everything=True)
    else:
        all_steps = steps(out, is_small=arguments.small, samples=arguments.samples)
    wanted = [step for step in all_steps if any(part in step.title for part in arguments.only.split(","))]
    if all(step.reason_against for step in wanted):
        print(
            f"Nothing can be run: {'; '.join(sorted({str(step.reason_against) for step in wanted})) or 'no such step'}."
        )
        return 2
    if not arguments.resume:
        for name in FILES:
            (out / name).unlink(missing_ok=True)
    results = _results_before(out) if arguments.resume else []
    done = {result.title for result in results}
    budget_s = arguments.budget or (2 * SANITIZER_S if arguments.sanitize else BUDGET_S)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    header = {"date": now, **describe_machine(), "commit": arguments.commit or _commit()}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        for result in run_steps(
            [step for step in wanted if step.title not in done],
            budget_s - (time.monotonic() - began),
            lambda step, limit: _execute(step, limit, out / "all.log"),
        ):
            print(f"… {result.title}: {result.outcome.value} ({result.seconds:.0f} s) {result.said}", flush=True)
            results.append(result)
            _keep(out, header, results)
    print("\n" + table(header, results))
    is_fine = all(result.outcome in (Outcome.PASSED, Outcome.SKIPPED) for result in results)
    return 0 if is_fine and len(results) >= len(wanted) else 1


def _execute(step: Step, limit_s: float, log: Path) -> tuple[int | None, str]:
    print(f"… {step.title} (at most {limit_s:.0f} s)", flush=True)
    return execute(step, limit_s, log)


def _keep(out: Path, header: dict[str, str], results: list[Result]) -> None:
    """On the disk, not only in its cache: the machine may go at any time."""
    last = results[-1]
    line = {"step": last.title, "outcome": last.outcome.value, "seconds": round(last.seconds, 1), "said": last.said}
    for name, mode, text in (
        ("table.txt", "w", table(header, results)),
        ("cases.jsonl", "a", json.dumps(line)),
    ):
        with (out / name).open(mode, encoding="utf-8") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _results_before(out: Path) -> list[Result]:
    """Of the steps that passed in earlier runs."""
    path = out / "cases.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = []
    for line in lines:
        with suppress(ValueError):
            record = json.loads(line)
            if record.get("outcome") == Outcome.PASSED.value and "step" in record:
                found.append(Result(record["step"], Outcome.PASSED, record["seconds"], record["said"]))
    return found


def _commit() -> str:
    try:
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown: there is no git"
    return answer.stdout.strip() or "not a repository"


if __name__ == "__main__":
    sys.exit(main())
