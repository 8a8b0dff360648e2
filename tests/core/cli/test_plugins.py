"""plugins list."""

from __future__ import annotations

import json
from typing import Any

import pytest


def test_lists_what_is_installed(invoke: Any) -> None:
    result = invoke("plugins", "list")
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("qwen2 ")]
    assert "aethermind-qwen2" in line
    assert "loaded" in line


def test_names_failures_with_their_reason(invoke: Any, broken_plugins: dict[str, str]) -> None:
    result = invoke("plugins", "list")
    assert result.exit_code == 0
    for name, reason in broken_plugins.items():
        (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"{name} ")]
        assert f"fake-{name} 9.9" in line
        assert reason in line


def test_json(invoke: Any, broken_plugins: dict[str, str]) -> None:
    plugins = json.loads(invoke("plugins", "list", "--json").stdout)["plugins"]
    by_name = {plugin["name"]: plugin for plugin in plugins}
    qwen2 = by_name["qwen2"]
    assert qwen2["status"] == "loaded"
    assert (qwen2["error"], qwen2["advice"], qwen2["is_ours"]) == (None, "", True)
    assert (qwen2["api_version"], qwen2["api_versions"]) == ("2", ["2"])
    assert (qwen2["contract"], qwen2["contracts"]) == ("2", ["2"]), "the deprecated names"
    assert qwen2["negotiation"] == "it supports plugin API 2, this core supports 1 to 2; they use 2."
    assert qwen2["load_ms"] > 0
    assert qwen2["register_ms"] > 0
    for name, reason in broken_plugins.items():
        assert by_name[name]["status"] == "failed"
        assert reason in by_name[name]["error"]
        assert by_name[name]["registered"] == {}


def test_registrations_are_listed_by_package(invoke: Any, install_plugin: Any) -> None:
    source = """
from dataclasses import replace
from aethermind.ops.catalog.elementwise import ADD
from aethermind.ops.schema import OperatorSchema
from aethermind.plugins import hookimpl

@hookimpl
def register_devices(registry):
    registry.register("toy", probe=None, open=None, provider="toy")

@hookimpl
def register_kernels(registry):
    registry.register("toy", list, provider="toy")

@hookimpl
def register_operators(registry):
    registry.register(replace(ADD, schema=OperatorSchema.parse("plus(a: F[T], b: F[T]) -> (out: F[T])")), "toy")

@hookimpl
def register_weight_formats(registry):
    registry.register(lambda name: None, names=["toy1", "toy2"], provider="toy")

@hookimpl
def register_policies(registry):
    registry.register(name="toy", target="toy:Policy", provider="toy")

@hookimpl
def register_commands(app):
    app.command("toy-verb")(lambda: None)
"""
    install_plugin("toy", source)
    report = json.loads(invoke("plugins", "list", "--json").stdout)
    (toy,) = [plugin for plugin in report["plugins"] if plugin["name"] == "toy"]
    assert toy["error"] is None
    assert toy["registered"] == {
        "devices": ["toy"],
        "kernels": ["toy"],
        "operators": ["plus"],
        "weight_formats": ["toy1", "toy2"],
        "policies": ["toy"],
        "commands": ["toy-verb"],
    }
    assert report["built_in"]["devices"] == ["numpy", "null"]
    assert {"linear", "softmax"} <= set(report["built_in"]["operators"])
    assert "plus" not in report["built_in"]["operators"]
    text = invoke("plugins", "list").stdout
    assert (
        "devices toy; kernels toy; weight formats toy1, toy2; policies toy; operators plus; commands toy-verb" in text
    )


def test_a_failing_plugin_is_listed_with_how_to_disable_it(
    invoke: Any, install_plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin("rogue", "raise ImportError('no libx.so')")
    monkeypatch.setenv("AETHERMIND_PLUGINS", "cpu,qwen2,rogue")
    for command in (["plugins", "list"], ["doctor"]):
        text = invoke(*command).stdout
        assert "Update it (pip install --upgrade fake-rogue), or uninstall it." in text
        assert "To do without what failed until it is repaired: export AETHERMIND_PLUGINS=cpu,qwen2\n" in text
    monkeypatch.setenv("AETHERMIND_PLUGINS", "cpu,qwen2")
    assert "until it is repaired" not in invoke("plugins", "list").stdout


def test_allow_list_hides_the_others(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "")
    assert "No plugins are installed" in invoke("plugins", "list").stdout


def test_an_allow_list_that_excludes_everything_is_named(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "cpuu")
    said = invoke("plugins", "list").stdout
    assert said == "No plugins are installed that AETHERMIND_PLUGINS lets load: cpuu.\n"
