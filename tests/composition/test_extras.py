"""What pip installs for each extra works at once, and holds no more than was asked for."""

from __future__ import annotations

import json

import pytest
from tests.composition.environments import Environment, Environments

OURS = {"aethermind", "aethermind-core", "aethermind-cpu", "aethermind-qwen2"}


@pytest.fixture(scope="module")
def plain(environments: Environments) -> Environment:
    """What `pip install aethermind[cpu,qwen2]` gives."""
    return environments.make("aethermind[cpu,qwen2]")


def test_the_smallest_has_no_torch_and_generates(plain: Environment) -> None:
    packages = plain.packages()
    assert {name for name in packages if name.startswith("aethermind")} == OURS
    assert not {"torch", "transformers", "fastapi", "redis", "ray"} & packages.keys()
    listed = json.loads(plain.run("aethermind", "plugins", "list", "--json").stdout)
    assert {plugin["name"]: plugin["error"] for plugin in listed["plugins"]} == {"cpu": None, "qwen2": None}
    answer = plain.run("aethermind", "generate", "Once upon a time", "--max-tokens", "6", "--device", "cpu")
    assert answer.stdout.strip()
