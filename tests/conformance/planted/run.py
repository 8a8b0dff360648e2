"""Runs the conformance kit on every planted bug, and tells which it finds.

    python -m tests.conformance.planted.run [-k WORD] [--jobs N]

A bug is found when `aethermind conform` exits with 1 for it and names a case that failed. Exits with 1 itself where
fewer than 97 % are found, where a bug that is said to survive is found, or where the subjects without a bug do not
conform.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.planted.bugs import BUGS, Bug
from tests.conformance.planted.plugin import FOLDER, VARIABLE
from tests.core.plugins.fake_distributions import write_distribution

__all__ = ["Finding", "conform", "installed", "try_bug"]

ROOT = Path(__file__).parents[3]
SHARE = 0.97
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PLUGINS = "planted,cpu,qwen2"
LIMIT_S, CASE_LIMIT_S = 600, 60
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "planted": ("planted",),
    "planted-native": ("cpu", "--suite", "operators", "-k", "planted-native"),
}


@dataclass(frozen=True)
class Finding:
    """What the command said of a bug; `status` is its exit status, None where it had to be ended."""

    bug: Bug
    status: int | None
    seconds: float
    said: str

    @property
    def is_found(self) -> bool:
        """A case failed; a command that ran none, or could not do its work, finds nothing."""
        return self.status == 1 and "\nFailed:" in self.said


@contextmanager
def installed() -> Iterator[Mapping[str, str]]:
    """The environment in which the subjects are a package."""
    with TemporaryDirectory() as folder:
        entry_points = "[aethermind.plugins.v2]\nplanted = tests.conformance.planted.plugin\n"
        write_distribution(Path(folder), "planted", entry_points, version="1.0")
        path = os.pathsep.join(filter(None, (folder, str(ROOT), os.environ.get("PYTHONPATH"))))
        # One thread a process, but for workers of the device: the runner has several processes.
        yield {**os.environ, "PYTHONPATH": path, FOLDER: folder, **ONE_THREAD, "AETHERMIND_PLUGINS": PLUGINS}


def conform(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int | None, str]:
    """The exit status of the command, None after a while, and what it said."""
    command = [sys.executable, "-m", "aethermind", "conform", *arguments, "--timeout", str(CASE_LIMIT_S)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"It did not end within {LIMIT_S} s."
    return done.returncode, done.stdout + done.stderr


def try_bug(bug: Bug, environment: Mapping[str, str]) -> Finding:
    """Run the part of the kit that is about the bug's place until something fails."""
    begun = time.monotonic()
    status, said = conform((bug.device, *bug.cases, "--exitfirst"), {**environment, VARIABLE: bug.name})
    return Finding(bug, status, time.monotonic() - begun, said)


def main() -> int:
    """Run, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", metavar="WORD", default="", help="only bugs with this in their name")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    given = parser.parse_args()
    chosen = [bug for bug in BUGS if given.k in bug.name]
    assert chosen, f"no bug is called like {given.k!r}"
    with installed() as environment, ThreadPoolExecutor(given.jobs) as pool:
        whole = pool.map(lambda name: _conforms(name, environment), () if given.k else SUBJECTS)
        findings = list(pool.map(_telling(lambda bug: try_bug(bug, environment)), chosen))
        broken = [name for name, is_right in zip(SUBJECTS, whole, strict=False) if not is_right]
    return _conclude(findings, broken)


def _conforms(name: str, environment: Mapping[str, str]) -> bool:
    status, said = conform(SUBJECTS[name], environment)
    print(f"{name} without a bug: {'conforms' if status == 0 else said[-2000:]}", flush=True)
    return status == 0


def _telling(work: Callable[[Bug], Finding]) -> Callable[[Bug], Finding]:
    def told(bug: Bug) -> Finding:
        finding = work(bug)
        state = "found" if finding.is_found else "ended" if finding.status is None else "SURVIVED"
        print(f"{state:<9} {finding.seconds:5.1f} s  {bug.name:<45} {bug.breaks}", flush=True)
        if finding.status not in (0, 1):
            print(f"          status {finding.status}: {finding.said[-600:]}", flush=True)
        elif finding.is_found and bug.survives:
            print(f"          it is said to survive: {bug.survives}", flush=True)
        elif not finding.is_found:
            print(f"          {bug.survives or 'nothing explains it'}", flush=True)
        return finding

    return told


def _conclude(findings: Sequence[Finding], broken: Sequence[str]) -> int:
    found = sum(finding.is_found for finding in findings)
    unexplained = [one.bug.name for one in findings if not one.is_found and not one.bug.survives]
    outdated = [one.bug.name for one in findings if one.is_found and one.bug.survives]
    share = found / len(findings)
    print(f"\n{found} of {len(findings)} found: {share:.1%}")
    for title, names in (("Do not conform", broken), ("Unexplained", unexplained), ("Found after all", outdated)):
        if names:
            print(f"{title}: {', '.join(names)}")
    return 1 if share < SHARE or broken or unexplained or outdated else 0


if __name__ == "__main__":
    raise SystemExit(main())
