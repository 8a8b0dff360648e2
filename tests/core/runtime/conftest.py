"""Fake packages for the tests of this folder too."""

from __future__ import annotations

from tests.core.plugins.conftest import fakes

__all__ = ["fakes"]
