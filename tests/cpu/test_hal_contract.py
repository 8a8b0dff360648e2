"""The CPU backend does what every backend must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.core.hal.contract import BackendContract

from aethermind.hal import Backend
from aethermind_cpu.backend import CpuBackend


class TestCpuBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        opened = CpuBackend()
        yield opened
        opened.close()
