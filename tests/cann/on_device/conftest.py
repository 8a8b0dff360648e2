"""Tests that run wherever torch_npu sees an NPU: on hardware, and on the stand-in (test_on_standin.py)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch_npu") is not None else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "on_device":
            item.add_marker(pytest.mark.cann)
