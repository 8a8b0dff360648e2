"""The conformance kit: tests of what a backend must do, which run on any device.

    aethermind conform NAME                                          one command, a table at the end
    pytest --pyargs aethermind.testing.suites --backend NAME -p aethermind.testing.pytest_plugin

Suites are test files: `hal` (memory, streams, events, transfers), `operators` (kernels against the references of their
operators) and `models` (whole models against the `numpy` device). They need `pip install 'aethermind-core[testing]'`.
"""

from __future__ import annotations

from aethermind.testing.report import CaseResult, Expectation, Expectations, Outcome, Report, read_expectations

__all__ = ["CaseResult", "Expectation", "Expectations", "Outcome", "Report", "read_expectations"]
