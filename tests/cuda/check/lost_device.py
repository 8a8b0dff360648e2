"""A pytest plugin: the process of a test that lost its device ends, so that a fresh one goes on behind it.

With pytest-xdist the worker is replaced and the test counts as failed. Failures are printed as they come.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from tests.cuda.check.records import DEVICE_LOST_STATUS, lost_device

__all__: list[str] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield  # the report is stored before this returns
    if call.excinfo is not None and lost_device(call.excinfo.value):
        print(f"The device is lost in {report.nodeid}: {call.excinfo.value}", flush=True)
        os._exit(DEVICE_LOST_STATUS)
    return report


class _Printer:
    """In the process that collects the reports of all workers."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash: Any = getattr(report.longrepr, "reprcrash", None)
            message = str(report.longrepr if crash is None else crash.message).strip().splitlines()
            print(f"\nFAILED {report.nodeid}: {message[0][:300] if message else ''}", flush=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Printer())
