"""Fake packages for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDistributions:
    """Fake packages in addition to the installed ones."""
    return FakeDistributions(tmp_path, monkeypatch)
