"""Third-party packages for older and newer versions of the plugin API, as wheels, with a newer core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.composition.environments import Environment, Environments
from tests.composition.small_wheels import of_api_versions, plugin_wheel

POLICY = """
    from aethermind.plugins import hookimpl

    @hookimpl
    def register_policies(registry):
        registry.register("{0}-policy", "aethermind.engine.policies:FirstComeFirstServed", provider="{0}")

    @hookimpl
    def register_kernels():  # from before this hook had an argument
        pass
"""
UNTOUCHED = "raise AssertionError('a plugin of another API version is not imported')"


def policy(folder: Path, distribution: str, *api_versions: int) -> Path:
    return plugin_wheel(folder, distribution, POLICY.format(distribution), api_versions=api_versions)


def plugins_of(environment: Environment) -> dict[str, dict[str, Any]]:
    listed = json.loads(environment.run("aethermind", "plugins", "list", "--json").stdout)
    return {plugin["name"]: plugin for plugin in listed["plugins"]}


@pytest.fixture(scope="module")
def environment(environments: Environments, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A core that supports API versions 2 and 3, and packages for each API version from 1 to 4."""
    folder = tmp_path_factory.mktemp("strangers")
    (core,) = wheelhouse.glob("aethermind_core-*.whl")
    return environments.make(
        of_api_versions(core, 2, 3, folder),
        policy(folder, "of-today", 3),
        policy(folder, "of-before", 2),
        policy(folder, "of-all", 1, 2, 3, 4),
        plugin_wheel(folder, "of-old", UNTOUCHED, api_versions=(1,)),
        plugin_wheel(folder, "of-tomorrow", UNTOUCHED, api_versions=(4,)),
    )


def test_the_newest_common_api_version_is_used(environment: Environment) -> None:
    plugins = plugins_of(environment)
    used = {name: plugin["api_version"] for name, plugin in plugins.items() if plugin["status"] == "loaded"}
    assert used == {"of-today": "3", "of-before": "2", "of-all": "3"}
    for name in used:
        assert plugins[name]["registered"] == {"policies": [f"{name}-policy"]}
    assert plugins["of-before"]["negotiation"].endswith("they use 2, an older one, which still works.")


def test_doctor_says_who_is_to_be_updated(environment: Environment) -> None:
    doctor = environment.run("aethermind", "doctor").stdout
    (old,) = [line for line in doctor.splitlines() if line.split()[:1] == ["of-old"]]
    assert "it supports plugin API 1, this core supports 2 to 3." in old
    assert old.endswith("Install a newer of-old, made for plugin API 3: pip install --upgrade of-old.")
    (tomorrow,) = [line for line in doctor.splitlines() if line.split()[:1] == ["of-tomorrow"]]
    assert "it supports plugin API 4, this core supports 2 to 3." in tomorrow
    assert "Install a newer core (pip install --upgrade aethermind-core), or a version of of-tomorrow" in tomorrow
    assert "export AETHERMIND_PLUGINS=of-all,of-before,of-today" in doctor


def test_the_core_of_this_tree_says_the_same_of_what_is_newer(environment: Environment, wheelhouse: Path) -> None:
    """Undo an upgrade of the core: a plugin that also supports the old API version still works."""
    (core,) = wheelhouse.glob("aethermind_core-*.whl")
    environment.install(core, "--force-reinstall", "--no-deps")
    plugins = plugins_of(environment)
    used = {name: plugin["api_version"] for name, plugin in plugins.items() if plugin["status"] == "loaded"}
    assert used == {"of-all": "2", "of-before": "2"}
    assert plugins["of-old"]["negotiation"] == (
        "it supports plugin API 1, this core supports 1 to 2; they use 1, an older one, which still works."
    )
    assert plugins["of-today"]["error"] == "it supports plugin API 3, this core supports 1 to 2."
    assert plugins["of-today"]["advice"].startswith("Install a newer core (pip install --upgrade aethermind-core)")
