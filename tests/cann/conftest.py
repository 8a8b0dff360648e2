"""An environment in which child processes find NPUs: the stand-in is their torch_npu."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STANDIN = Path(__file__).parent / "standin"


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let child processes find two NPUs without changing torch in this one; returns the stand-in's folder."""
    nodes = tmp_path / "dev"
    nodes.mkdir()
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (nodes / name).touch()
    monkeypatch.setenv("AETHERMIND_CANN_NODES", str(nodes))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    paths = [str(STANDIN), str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return STANDIN
