"""`python -m aethermind.testing --backend NAME …` runs the suites in this process, which a backend may crash."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parent / "suites"


def main() -> int:
    """Run pytest on the suites with these arguments, isolated from configuration of the working directory."""
    kit_options = [
        "-c",
        str(SUITES / "pytest.ini"),
        "--rootdir",
        str(SUITES),
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "--strict-markers",
    ]
    return pytest.main([*kit_options, "-p", "aethermind.testing.pytest_plugin", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
