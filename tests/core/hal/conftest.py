"""Lets assertions of the contract explain themselves as those of test files do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.core.hal.contract")
