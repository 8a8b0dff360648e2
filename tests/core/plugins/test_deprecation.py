"""What a plugin uses that is given up: Python warns at its line, and its record says what to use instead."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.cli.plugins import plugin_records, plugin_rows
from aethermind.plugins import DeprecatedUseWarning, hookspecs
from aethermind.plugins.deprecation import deprecated
from aethermind.plugins.discovery import PluginRecord
from aethermind.runtime.policy_registry import PolicyRegistry

USES = """
    @hookimpl
    def register_policies(registry):
        registry.register_quickly("mine")
"""


@pytest.fixture(autouse=True)
def given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def register_quickly(*_: Any) -> None:
        deprecated("PolicyRegistry.register_quickly", instead="register", until="9.0")

    monkeypatch.setattr(PolicyRegistry, "register_quickly", register_quickly, raising=False)


def booted(name: str) -> PluginRecord:
    (record,) = [record for record in Runtime.boot().plugins if record.name == name]
    return record


def test_a_registrys_method(fakes: FakeDistributions) -> None:
    module = fakes.install("user", USES)
    with pytest.warns(DeprecatedUseWarning) as warned:
        record = booted("user")
    sentence = "PolicyRegistry.register_quickly goes with version 9.0; use register."
    assert (record.error, record.deprecated) == (None, [sentence])
    assert warned[0].filename.endswith(f"{module}.py")
    assert plugin_records([record])[0]["deprecated"] == [sentence]
    assert plugin_rows([record])[0][-1].endswith(f"; deprecated: {sentence}")


def test_a_hook(fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookspecs, "DEPRECATED_HOOKS", {"register_proposers": ("register_drafts", "9.0")})
    fakes.install("hooked", "@hookimpl\ndef register_proposers(registry): ...")
    assert booted("hooked").deprecated == ["the hook register_proposers goes with version 9.0; use register_drafts."]


def test_who_uses_nothing_of_the_kind_hears_nothing(fakes: FakeDistributions) -> None:
    fakes.install("modern", "")
    assert booted("modern").deprecated == []
