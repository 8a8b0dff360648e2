"""What pip installs for each extra works at once, is truthful about itself, and holds no more than was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.composition.environments import Environment, Environments

from aethermind import __version__

FAMILIES = {
    "aethermind-qwen2",
    "aethermind-llama",
    "aethermind-gemma",
    "aethermind-deepseek",
    "aethermind-gpt-oss",
    "aethermind-mamba",
    "aethermind-glm",
    "aethermind-phi",
    "aethermind-gpt2",
    "aethermind-bert",
}
BASE = {"aethermind", "aethermind-core", "aethermind-cpu", *FAMILIES}
SERVER = {"fastapi", "httptools", "httpx", "msgpack", "prometheus-client", "uvicorn"}
HEAVY = {"torch", "transformers", "ray", "scipy"}


@pytest.fixture(scope="module")
def smallest(environments: Environments) -> Environment:
    """What `pip install aethermind` gives."""
    return environments.make("aethermind")


@pytest.fixture(scope="module")
def devices(environments: Environments) -> Environment:
    """What `pip install aethermind[cuda,cann]` gives where neither has its hardware."""
    return environments.make("aethermind[cuda,cann]")


def doctor(environment: Environment) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(environment.run("aethermind", "doctor", "--json").stdout)
    return report


def generates(environment: Environment, *options: str) -> bool:
    command = ("generate", "Once upon a time", "--max-tokens", "6", *options)
    return bool(environment.run("aethermind", *command).stdout.strip())


def ours(environment: Environment) -> set[str]:
    """Names of our packages there, all of which are of this version."""
    found = {name: version for name, version in environment.packages().items() if name.startswith("aethermind")}
    assert set(found.values()) == {__version__}
    return set(found)


def test_the_smallest_is_small_and_generates(smallest: Environment) -> None:
    assert ours(smallest) == BASE
    assert not (HEAVY | SERVER) & smallest.packages().keys()
    assert generates(smallest)
    report = doctor(smallest)
    assert report["auto_device"] == "cpu"
    assert report["unmet_requirements"] == []
    listed = json.loads(smallest.run("aethermind", "plugins", "list", "--json").stdout)
    assert {(plugin["name"], plugin["status"], plugin["is_ours"]) for plugin in listed["plugins"]} == {
        (name, "loaded", True)
        for name in ("bert", "cpu", "deepseek", "gemma", "glm", "gpt-oss", "gpt2", "llama", "mamba", "phi", "qwen2")
    }


def test_without_the_extra_the_server_says_how_to_get_it(smallest: Environment) -> None:
    assert "--port" in smallest.run("aethermind", "serve", "--help").stdout
    refused = smallest.run("aethermind", "serve", may_fail=True)
    assert refused.returncode == 2
    (sentence,) = refused.stderr.splitlines()
    assert sentence.endswith("Run `pip install 'aethermind[serve]'`.")


def test_a_plugin_that_is_uninstalled_takes_nothing_with_it(environments: Environments) -> None:
    environment = environments.make("aethermind-core", "aethermind-cpu", "aethermind-qwen2", "aethermind-sim")
    environment.uninstall("aethermind-sim", "aethermind-cpu")
    assert ours(environment) == {"aethermind-core", "aethermind-qwen2"}
    report = doctor(environment)
    assert [(plugin["name"], plugin["error"]) for plugin in report["plugins"]] == [("qwen2", None)]
    assert report["auto_device"] == "numpy"
    assert generates(environment)
    refused = environment.run("aethermind", "generate", "Once", "--device", "cpu", may_fail=True)
    assert refused.returncode == 2
    assert refused.stderr.startswith("Error: Unknown device 'cpu'. Installed: null, numpy.")
    assert refused.stderr.endswith("aethermind-cpu provides it; install it with `pip install aethermind-cpu`.\n")


def test_serve_has_all_that_a_server_needs(environments: Environments) -> None:
    environment = environments.make("aethermind[serve]")
    packages = environment.packages()
    assert ours(environment) == BASE
    assert packages.keys() >= SERVER
    assert not HEAVY & packages.keys()
    assert generates(environment)
    refused = environment.run("aethermind", "serve", "--model", "/nowhere", "--port", "0", may_fail=True)
    assert "pip install" not in refused.stderr, "it gets as far as the model"
    assert "/nowhere" in refused.stderr


@pytest.mark.parametrize("name", ["cuda", "cann"])
def test_a_device_that_is_not_there_is_absent_for_a_reason(devices: Environment, name: str) -> None:
    assert ours(devices) == BASE | {"aethermind-cuda", "aethermind-cann"}
    assert not HEAVY & devices.packages().keys()
    report = doctor(devices)
    (device,) = [device for device in report["devices"] if device["name"] == name]
    if device["is_available"]:
        pytest.skip(f"This machine has {name}: {device['reason']}")
    assert not device["is_broken"]
    assert len(device["reason"]) > 20
    assert (device["provider"], report["auto_device"]) == (f"aethermind-{name}", "cpu")
    assert generates(devices)
    refused = devices.run("aethermind", "generate", "Once", "--device", name, may_fail=True)
    assert refused.returncode == 2
    assert device["reason"].rstrip(".") in refused.stderr


def test_all_is_all(smallest: Environment, environments: Environments) -> None:
    """Ours are installed; of what others make it is read what pip would install."""
    planned = smallest.would_install("aethermind[all]")
    third_party = {name for name in planned if not name.startswith("aethermind")}
    assert third_party >= SERVER | {"mcp", "redis", "llguidance", "opentelemetry-sdk"}
    assert not third_party & {"torch", "ray"}
    ours_of_all = [f"{name}=={version}" for name, version in planned.items() if name.startswith("aethermind")]
    environment = environments.make("--no-deps", "aethermind-core", "aethermind-cpu", *FAMILIES, *ours_of_all)
    assert ours(environment) == {
        f"aethermind-{name}"
        for name in (
            "core",
            "cpu",
            "cuda",
            "cann",
            "qwen2",
            "llama",
            "phi",
            "glm",
            "gemma",
            "deepseek",
            "mamba",
            "gpt-oss",
            "gpt2",
            "bert",
        )
    }
    assert {plugin["error"] for plugin in doctor(environment)["plugins"]} == {None}
    assert generates(environment)
