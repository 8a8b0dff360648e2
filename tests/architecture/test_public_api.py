"""Every package has a docstring and a sorted `__all__` whose names exist and are documented."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from tests.architecture.sources import PACKAGES, modules

PACKAGE_MODULES = modules(packages_only=True)
MODULES = modules()


def test_the_packages_were_found() -> None:
    assert {module.__name__ for module in PACKAGE_MODULES} >= {*PACKAGES, "aethermind.hal", "aethermind.graph"}
    assert len(MODULES) > 100


@pytest.mark.parametrize("module", PACKAGE_MODULES, ids=lambda module: module.__name__)
def test_a_package_has_a_docstring_and_exports(module: ModuleType) -> None:
    assert module.__doc__
    assert hasattr(module, "__all__") or module.__name__ in PACKAGES[1:], "a package lists its exports"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_module_has_a_docstring_and_sorted_exports(module: ModuleType) -> None:
    assert module.__doc__
    exported = getattr(module, "__all__", [])
    assert exported == sorted(set(exported))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_exported_names_exist_and_are_documented(module: ModuleType) -> None:
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert has_own_docstring(value), f"{module.__name__}.{name} has no docstring"


def has_own_docstring(value: object) -> bool:
    """Whether the docstring was written: dataclasses without one get their signature."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return bool(text) and not str(text).startswith(f"{getattr(value, '__name__', '')}(")
