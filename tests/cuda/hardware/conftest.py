"""Tests for a GPU: `make cuda-check` runs them where there is one, elsewhere they are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aethermind import Runtime
from aethermind.runtime import OpenDevice
from aethermind_cuda import probe


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    answer = probe.probe()
    if not answer.is_available:
        pytest.skip(f"This test needs an NVIDIA GPU, and {answer.reason}")


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """Everything installed, found once."""
    return Runtime.boot()


@pytest.fixture(scope="session")
def opened(runtime: Runtime) -> Iterator[OpenDevice]:
    """The first GPU."""
    opened = runtime.open_device("cuda")
    yield opened
    opened.backend.close()
