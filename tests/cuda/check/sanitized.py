"""compute-sanitizer over a sample of every entry point, in several processes side by side on one card.

    python -m tests.cuda.check.sanitized memcheck [--processes 4] [--samples int4,sample_tokens]

A process takes most of its time to start and for the instrumentation of kernels, both on the host. So several of them
share the card, and each checks every so many-th sample.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.cuda.check.machine import find_tool
from tests.cuda.check.records import CaseLog

__all__ = ["OPTIONS", "TOOLS", "commands"]

TOOLS = ("memcheck", "racecheck")
OPTIONS = ("--error-exitcode=9", "--print-limit=20", "--report-api-errors=no")
"""NVIDIA's bindings ask the driver for calls that it need not have; each answer would count as an error."""
_FIRST_PORT, _PORTS = 49152, 16
"""The tool tries ten ports to reach its target; processes that start at once would compete for the same ones."""


def commands(sanitizer: str, tool: str, processes: int, samples: str) -> list[list[str]]:
    """The command of each process."""
    found = []
    for index in range(processes):
        port = _FIRST_PORT + _PORTS * (TOOLS.index(tool) * processes + index)
        target = [sys.executable, "-m", "tests.cuda.check.entry_points", tool, "--samples", samples]
        shard = ["--shard", f"{index + 1}/{processes}"]
        found.append([sanitizer, f"--tool={tool}", f"--port={port}", *OPTIONS, *target, *shard])
    return found


def main() -> int:
    """Run all processes; 0 where each ended well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--samples", default="", help="those whose names contain one of these, with commas between")
    arguments = parser.parse_args()
    sanitizer = find_tool("compute-sanitizer")
    assert sanitizer, "the step is left out where the tool is missing"
    started = [
        subprocess.Popen(command)
        for command in commands(sanitizer, arguments.tool, arguments.processes, arguments.samples)
    ]
    statuses = [process.wait() for process in started]
    log = CaseLog.of_environment(arguments.tool)
    outcomes = [record["outcome"] for record in log.records() if "case" in record]
    unfinished, failed = log.unfinished(), outcomes.count("FAILED")
    print(f"{outcomes.count('passed')} passed, {failed} failed, {len(unfinished)} unfinished; exit statuses {statuses}")
    return 1 if any(statuses) or unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
