"""Every package has a docstring and a sorted `__all__` whose names exist and are documented."""

from __future__ import annotations

import inspect

from tests.architecture.sources import PACKAGES, modules

PACKAGE_MODULES = modules(packages_only=True)
MODULES = modules()


def test_the_packages_were_found() -> None:
    assert {module.__name__ for module in PACKAGE_MODULES} >= {*PACKAGES, "aethermind.hal", "aethermind.graph"}
    assert len(MODULES) > 100


def test_packages_have_a_docstring_and_exports() -> None:
    without_docstring = [module.__name__ for module in PACKAGE_MODULES if not module.__doc__]
    assert without_docstring == []
    without_exports = [module.__name__ for module in PACKAGE_MODULES if not hasattr(module, "__all__")]
    assert set(without_exports) <= set(PACKAGES[1:]), "a package lists its exports"


def test_modules_have_a_docstring_and_sorted_exports() -> None:
    assert [module.__name__ for module in MODULES if not module.__doc__] == []
    exports = {module.__name__: list(getattr(module, "__all__", [])) for module in MODULES}
    assert {name: names for name, names in exports.items() if names != sorted(set(names))} == {}


def test_exported_names_exist_and_are_documented() -> None:
    missing, undocumented = [], []
    for module in MODULES:
        for name in getattr(module, "__all__", []):
            if not hasattr(module, name):
                missing.append(f"{module.__name__}.{name}")
                continue
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isroutine(value)) and not has_own_docstring(value):
                undocumented.append(f"{module.__name__}.{name}")
    assert missing == []
    assert undocumented == []


def has_own_docstring(value: object) -> bool:
    """Whether the docstring was written: dataclasses without one get their signature."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return bool(text) and not str(text).startswith(f"{getattr(value, '__name__', '')}(")
