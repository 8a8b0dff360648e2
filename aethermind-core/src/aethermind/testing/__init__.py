"""The conformance kit: what a backend must do, as tests that run on any of them.

    aethermind conform NAME                                          one command, a table at the end
    pytest --pyargs aethermind.testing.suites --backend NAME -p aethermind.testing.pytest_plugin

Suites are test files: `hal` (memory, streams, events, transfers), `operators` (every kernel against its operator's
page) and `models` (whole models against the `numpy` device). It needs `pip install 'aethermind-core[testing]'`.
"""

from __future__ import annotations

from aethermind.testing.expectations import Expectation, Expectations, read_expectations
from aethermind.testing.report import CaseResult, Outcome, Report

__all__ = ["CaseResult", "Expectation", "Expectations", "Outcome", "Report", "read_expectations"]
