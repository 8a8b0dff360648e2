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
    assert set(by_name["qwen2"]) == {"name", "distribution", "version", "contract", "status", "error", "load_ms"}
    assert (by_name["qwen2"]["status"], by_name["qwen2"]["error"]) == ("loaded", None)
    for name, reason in broken_plugins.items():
        assert by_name[name]["status"] == "failed"
        assert reason in by_name[name]["error"]


def test_allow_list_hides_the_others(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "")
    assert "No plugins are installed" in invoke("plugins", "list").stdout
