"""A suite whose process may die or hang: it is started again behind the case that did it, until no case is left.

    python -m tests.cuda.check.workers SUITE -- python -m tests.cuda.check.shapes linear

The worker records its cases (`records.CaseLog`) and leaves out those that began before.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from tests.cuda.check.records import DEVICE_LOST_STATUS, CaseLog

__all__ = ["supervise"]

_POLL_S = 0.2


def supervise(log: CaseLog, command: Sequence[str], patience_s: float, most_starts: int = 12) -> int:
    """Run `command` until it exits with 0 or makes no progress; returns 0 where every case of the suite passed.

    A process whose log does not grow for `patience_s` seconds is killed. The case that it was in has failed.
    """
    assert log.path is not None, "a worker is watched by what it records"
    for _ in range(most_starts):
        before = len(log.begun())
        status = _run(log, command, patience_s)
        died = {None: f"it hung for {patience_s:.0f} s", DEVICE_LOST_STATUS: "it lost the device"}
        for name in log.unfinished():
            log.failed(name, died.get(status, f"its process ended with status {status}"))
        if status == 0 or len(log.begun()) == before:
            break
    if status not in (0, DEVICE_LOST_STATUS, None):
        print(f"{log.suite}: the worker ended with status {status}.", flush=True)
    failures = log.failures()
    passed = sum(record.get("outcome") == "passed" for record in log.records())
    print(f"{passed} passed, {len(failures)} failed{': ' if failures else ''}{', '.join(failures[:8])}", flush=True)
    return 0 if status == 0 and passed and not failures else 1


def _run(log: CaseLog, command: Sequence[str], patience_s: float) -> int | None:
    """The exit status, or None of a process that was killed because it hung."""
    process = subprocess.Popen(command)
    size, grew = -1, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_S)
        now_size = log.path.stat().st_size if log.path is not None and log.path.is_file() else 0
        if now_size != size:
            size, grew = now_size, time.monotonic()
        elif time.monotonic() - grew > patience_s:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return None


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--patience", type=float, default=25.0, help="seconds without a line before a worker is killed")
    own, command = _split(sys.argv[1:])
    arguments = parser.parse_args(own)
    return supervise(CaseLog.of_environment(arguments.suite), command, arguments.patience)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]


if __name__ == "__main__":
    sys.exit(main())
