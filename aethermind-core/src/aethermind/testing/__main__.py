"""`python -m aethermind.testing --backend NAME …`: the suites, quietly, in a process that may die."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parent / "suites"


def main() -> int:
    """Run pytest on the suites with these arguments, as little of the surroundings as possible in its way."""
    own = [
        "-c",
        str(SUITES / "pytest.ini"),
        "--rootdir",
        str(SUITES),
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "--strict-markers",
    ]
    return pytest.main([*own, "-p", "aethermind.testing.pytest_plugin", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
