"""The tests of a device, on the stand-in: in a separate process, because torch supports one device of this kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.usefixtures("standin")
def test_tests_of_the_device_pass() -> None:
    folders = [str(Path(__file__).parent / name) for name in ("standin", "on_device")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *folders]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
