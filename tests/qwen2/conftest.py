"""Checkpoints for the tests of this folder, each written once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.qwen2.checkpoints import write_checkpoint

from aethermind.testing.families import ModelCase


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModelCase], Path]:
    """The directory of a family's checkpoint."""
    return cache(lambda family: write_checkpoint(family, tmp_path_factory.mktemp(family.name)))
