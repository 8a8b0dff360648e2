"""Our packages fit each other in one version: pip sees to it, and doctor says when somebody got round pip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.composition.environments import Environment, Environments
from tests.composition.small_wheels import plugin_wheel, under_version

from aethermind import __version__


@pytest.fixture
def newer(wheelhouse: Path, tmp_path: Path) -> Path:
    """A core of the next version, and nothing else of it."""
    (core,) = wheelhouse.glob("aethermind_core-*.whl")
    return under_version(core, "99.0", tmp_path)


@pytest.fixture(scope="module")
def environment(environments: Environments) -> Environment:
    return environments.make("aethermind-qwen2")


def test_pip_takes_no_core_of_another_version(environment: Environment, newer: Path) -> None:
    result = environment.install(newer, "aethermind-qwen2", may_fail=True)
    assert result.returncode == 1
    assert f"aethermind-qwen2 {__version__} depends on aethermind-core=={__version__}" in result.stdout
    assert environment.packages()["aethermind-core"] == __version__


def test_doctor_names_what_was_forced_and_does_not_fit(environment: Environment, newer: Path, tmp_path: Path) -> None:
    stranger = plugin_wheel(tmp_path, "left-behind", "", requires="aethermind-core<99")
    environment.install(stranger)
    environment.install(newer, "--no-deps")
    doctor = environment.run("aethermind", "doctor")
    section = doctor.stdout.partition("Versions that do not fit each other\n")[2].partition("\n\n")[0]
    assert [" ".join(line.split()) for line in section.splitlines()] == [
        f"aethermind-qwen2 {__version__} requires aethermind-core=={__version__}, but 99.0 is installed",
        "left-behind 1.0 requires aethermind-core<99, but 99.0 is installed",
        "Let pip choose versions that fit: pip install --upgrade aethermind-core aethermind-qwen2 left-behind",
    ]
    unmet = json.loads(environment.run("aethermind", "doctor", "--json").stdout)["unmet_requirements"]
    assert [(one["distribution"], one["installed"]) for one in unmet] == [
        ("aethermind-qwen2", "99.0"),
        ("left-behind", "99.0"),
    ]
    environment.install("aethermind-core", "aethermind-qwen2", "left-behind")  # which is on PyPI in real life
    assert "do not fit" not in environment.run("aethermind", "doctor").stdout
