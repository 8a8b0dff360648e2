"""The hooks: every one is documented, and the plugins in this tree fit them."""

from __future__ import annotations

import inspect

import pytest

from aethermind.plugins import API_VERSION, ENTRY_POINT_GROUP
from aethermind.plugins.discovery import discover
from aethermind.plugins.hookspecs import HookSpecs
from aethermind.plugins.loading import load_plugins

HOOKS = {name: hook for name, hook in vars(HookSpecs).items() if not name.startswith("_")}


def test_the_group_carries_the_api_version() -> None:
    assert f"aethermind.plugins.v{API_VERSION}" == ENTRY_POINT_GROUP


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_documentation(name: str) -> None:
    assert inspect.getdoc(HOOKS[name])
    assert name == "doctor_checks" or name.startswith("register_")


def test_the_installed_plugins_load() -> None:
    records = discover()
    load_plugins(records)
    ours = {record.name: record.error for record in records if record.distribution.startswith("aethermind-")}
    assert ours.items() >= {"qwen2": None, "cpu": None}.items()
    assert set(ours.values()) == {None}
