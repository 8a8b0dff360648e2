"""A machine with NPUs, as far as a child process can tell: the stand-in is its torch_npu."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STANDIN = Path(__file__).parent / "standin"


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes started from here find two NPUs; this one keeps torch as it is. Returns the stand-in's folder."""
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
