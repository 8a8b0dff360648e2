"""Ranges for profilers are made when they are asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from aethermind.errors import DeviceError
from aethermind_cuda.nvtx_ranges import find_annotate


def test_nvtx_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AETHERMIND_NVTX", raising=False)
    assert find_annotate() is None


def test_nvtx_is_used_if_enabled_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_NVTX", "1")
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate="annotate"))
    assert find_annotate() == "annotate"
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(DeviceError, match="pip install nvtx"):
        find_annotate()
