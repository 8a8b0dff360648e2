"""What the core says about packages that are not installed: which one to install, or that none is known."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from release.distributions import ROOT, distributions

from aethermind import Runtime, first_party
from aethermind.errors import AetherMindError
from aethermind.first_party import FIRST_PARTY, install_advice, pip_install_command, provider_of

HOOKS = {
    "architecture": "register_architectures",
    "device": "register_devices",
    "gguf": "register_gguf_families",
    "model": "register_models",
}


class Recorder:
    """A registry that notes the names that a package registers, aliases included."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def register(self, name: str, *_: Any, aliases: tuple[str, ...] = (), **__: Any) -> None:
        self.names |= {name, *aliases}


class FakeCore:
    """The installed core, as far as pip's record of its origin (PEP 610) goes."""

    def __init__(self, direct_url: str | None) -> None:
        self._direct_url = direct_url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._direct_url


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let only the core and these packages be installed, the core from `direct_url`."""

    def install(*packages: str, direct_url: str | None = None) -> None:
        def distribution(name: str) -> FakeCore:
            if name not in ("aethermind-core", *packages):
                raise PackageNotFoundError(name)
            return FakeCore(direct_url)

        monkeypatch.setattr(first_party, "distribution", distribution)

    return install


def test_the_table_is_what_the_packages_register() -> None:
    packages = [one.name for one in distributions() if one.name not in ("aethermind", "aethermind-core")]
    assert sorted(FIRST_PARTY) == sorted(packages)
    for package, names in FIRST_PARTY.items():
        plugin = import_module(f"{package.replace('-', '_')}.plugin")
        found = {}
        for kind, hook in HOOKS.items():
            if hasattr(plugin, hook):
                recorder = Recorder()
                getattr(plugin, hook)(recorder)
                found[kind] = tuple(sorted(recorder.names))
        assert found == names, package


def test_the_full_distribution_includes_every_family_and_the_cpu() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    required = {re.split(r"[\[=]", line)[0] for line in document["project"]["dependencies"]}
    families = {package for package, names in FIRST_PARTY.items() if "architecture" in names}
    assert len(families) >= 4
    assert required == {"aethermind-core", "aethermind-cpu", *families}
    from_the_clone = {line.strip() for line in (ROOT / "requirements.txt").read_text().splitlines()}
    assert {f"./{package}" for package in required} <= {line.partition("[")[0] for line in from_the_clone}


@pytest.mark.parametrize(
    ("kind", "name", "package"),
    [
        ("architecture", "LlamaForCausalLM", "aethermind-llama"),
        ("architecture", "mistral", "aethermind-llama"),
        ("architecture", "BertForMaskedLM", "aethermind-bert"),
        ("gguf", "qwen3", "aethermind-qwen2"),
        ("device", "cuda", "aethermind-cuda"),
        ("model", "demo", "aethermind-qwen2"),
    ],
)
def test_a_known_package_is_named_with_the_command_that_installs_it(
    install: Callable[..., None], kind: Any, name: str, package: str
) -> None:
    install()
    sentence = install_advice(kind, name, otherwise="")
    assert sentence == f"{package} provides it; install it with `pip install {package}`."


@pytest.mark.parametrize(
    ("kind", "name"),
    [("architecture", "JambaForCausalLM"), ("gguf", "mamba"), ("device", "mps"), ("gguf", "LlamaForCausalLM")],
)
def test_an_unknown_name_has_no_known_package(kind: Any, name: str) -> None:
    assert provider_of(kind, name) is None
    advice = install_advice(kind, name, otherwise="Take another.")
    assert advice == "No package that provides it is known. Take another."


def test_an_installed_package_is_not_advised_for_installation(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("aethermind-llama")
    monkeypatch.setenv("AETHERMIND_PLUGINS", "cpu, qwen2")
    assert "AETHERMIND_PLUGINS does not name llama; add it" in install_advice("gguf", "llama", otherwise="")
    monkeypatch.setenv("AETHERMIND_PLUGINS", "cpu,llama")
    assert "`aethermind plugins list` says why" in install_advice("gguf", "llama", otherwise="")


def test_from_a_clone_pip_installs_from_that_clone(install: Callable[..., None], tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    for folder in (clone, clone / "aethermind-core", clone / "aethermind-llama"):
        folder.mkdir()
        (folder / "pyproject.toml").touch()
    url = (clone / "aethermind-core").as_uri()
    assert "%20" in url
    install(direct_url=json.dumps({"dir_info": {}, "url": url}))
    assert shlex.split(pip_install_command("aethermind-llama")) == ["pip", "install", str(clone / "aethermind-llama")]
    assert shlex.split(pip_install_command("aethermind[serve]")) == ["pip", "install", f"{clone}[serve]"]
    core = pip_install_command("aethermind-core[torch]")
    assert shlex.split(core) == ["pip", "install", f"{clone}/aethermind-core[torch]"]
    assert pip_install_command("aethermind-cuda") == "pip install aethermind-cuda", "which that clone does not have"


@pytest.mark.parametrize(
    "direct_url",
    [
        None,
        "",
        "{}",
        "no JSON",
        '{"url": 3}',
        "[]",
        '{"url": "file:///gone/aethermind-core", "dir_info": {}}',
        '{"url": "https://example.org/aethermind_core-1.0-py3-none-any.whl", "archive_info": {}}',
    ],
)
def test_other_installations_use_pip_s_index(install: Callable[..., None], direct_url: str | None) -> None:
    install(direct_url=direct_url)
    command = pip_install_command("aethermind[serve]")
    assert command == "pip install 'aethermind[serve]'", "in quotes: zsh expands brackets"


def test_registries_name_the_first_party_package(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "")
    install()
    runtime = Runtime.boot()
    for look_up, end in (
        (lambda: runtime.architectures.get("MistralForCausalLM"), "`pip install aethermind-llama`."),
        (
            lambda: runtime.architectures.get("JambaForCausalLM"),
            "`aethermind plugin new model NAME` creates its skeleton.",
        ),
        (lambda: runtime.gguf_families.get("llama"), "`pip install aethermind-llama`."),
        (lambda: runtime.gguf_families.get("mamba"), "`aethermind plugin new model NAME` creates its skeleton."),
        (lambda: runtime.devices.select("cuda:1"), "`pip install aethermind-cuda`."),
        (lambda: runtime.devices.select("rocm"), "No package that provides it is known. Name one of these."),
        (lambda: runtime.devices.select("cpu"), "`pip install aethermind-cpu`."),
        (lambda: runtime.models.locate("demo"), "`pip install aethermind-qwen2`. Give one of these names, or a path."),
    ):
        with pytest.raises(AetherMindError) as refused:
            look_up()
        assert str(refused.value).endswith(end)
