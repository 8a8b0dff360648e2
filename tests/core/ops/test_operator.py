"""The registry of operators, and the catalog that fills it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aethermind.errors import OperatorError, PluginError
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry


def test_a_registered_operator_is_found_by_name():
    registry = OperatorRegistry()
    for operator in catalog.load():
        registry.register(operator)
    assert list(registry) == list(catalog.load())
    assert "linear" in registry
    assert "convolution" not in registry
    assert registry["linear"].name == "linear"


def test_an_unknown_operator_names_the_known():
    with pytest.raises(OperatorError, match=r"Unknown operator 'convolution'\. Known: add, add_low_rank, .*silu_mul"):
        OperatorRegistry(catalog.load())["convolution"]


def test_a_taken_name_names_its_provider():
    registry = OperatorRegistry(catalog.load())
    with pytest.raises(PluginError, match="Operator 'linear' of aethermind-x exists already"):
        registry.register(registry["linear"], "aethermind-x")


def test_a_frozen_registry_takes_nothing():
    registry = OperatorRegistry()
    registry.freeze()
    with pytest.raises(AssertionError):
        registry.register(catalog.load()[0])


def test_a_page_is_found_under_its_operators_name():
    assert [catalog.page(name).name for name in catalog.NAMES] == list(catalog.NAMES)
    assert len(set(catalog.NAMES)) == len(catalog.NAMES)


def test_importing_the_catalog_does_not_import_numpy():
    code = "import sys, aethermind.ops.catalog, aethermind.ops.operator; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
