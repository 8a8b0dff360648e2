"""Deprecated use by a plugin: Python warns at its line, and its record says what to use instead."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.cli.plugins import plugin_records, plugin_rows
from aethermind.plugins import DeprecatedUseWarning, hookspecs
from aethermind.plugins.compatibility import deprecated, deprecated_names
from aethermind.plugins.discovery import PluginRecord
from aethermind.plugins.registry import Registry

USES = """
    @hookimpl
    def register_policies(registry):
        registry.register_quickly("mine")
"""


@pytest.fixture(autouse=True)
def deprecated_method(monkeypatch: pytest.MonkeyPatch) -> None:
    def register_quickly(*_: Any) -> None:
        deprecated("Registry.register_quickly", instead="register", until="9.0")

    monkeypatch.setattr(Registry, "register_quickly", register_quickly, raising=False)


def booted(name: str) -> PluginRecord:
    (record,) = [record for record in Runtime.boot().plugins if record.name == name]
    return record


def test_use_of_a_deprecated_method_is_noted(fakes: FakeDistributions) -> None:
    module = fakes.install("user", USES)
    with pytest.warns(DeprecatedUseWarning) as warned:
        record = booted("user")
    sentence = "Registry.register_quickly is removed in version 9.0; use register."
    assert (record.error, record.deprecated) == (None, [sentence])
    assert warned[0].filename.endswith(f"{module}.py")
    assert plugin_records([record])[0]["deprecated"] == [sentence]
    assert plugin_rows([record])[0][-1].endswith(f"; deprecated: {sentence}")


def test_a_deprecated_hook_is_noted(fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookspecs, "DEPRECATED_HOOKS", {"register_proposers": ("register_drafts", "9.0")})
    fakes.install("hooked", "@hookimpl\ndef register_proposers(registry): ...")
    assert booted("hooked").deprecated == [
        "the hook register_proposers is removed in version 9.0; use register_drafts."
    ]


def test_a_plugin_without_deprecated_use_gets_no_note(fakes: FakeDistributions) -> None:
    fakes.install("modern", "")
    assert booted("modern").deprecated == []


def test_a_renamed_public_name_is_found_with_a_warning() -> None:
    find = deprecated_names("package", {"Old": ("New", DeprecatedUseWarning)})
    with pytest.warns(DeprecatedUseWarning, match=r"^package\.Old is removed in version 0\.4; use New\.$"):
        assert find("Old") is DeprecatedUseWarning
    with pytest.raises(AttributeError, match="module 'package' has no attribute 'Older'"):
        find("Older")


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("aethermind.checkpoint", "Part", "TensorSlice"),
        ("aethermind.engine.executors", "PlannedModel", "CompiledModel"),
        ("aethermind.model", "InputProcessorRegistry", "Registry"),
        ("aethermind.model.known_fields", "Fate", "Handling"),
    ],
)
def test_a_name_of_the_version_before_is_still_found(module: str, old: str, new: str) -> None:
    with pytest.warns(DeprecatedUseWarning):
        found = getattr(import_module(module), old)
    assert found.__name__ == new
