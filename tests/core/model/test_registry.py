"""Architectures and installed models by name."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase

import pytest

from aethermind.errors import ConfigError, PluginError
from aethermind.model.registry import ArchitectureRegistry, ModelRegistry, gguf_families, input_processors


def test_an_architecture_is_imported_when_it_is_first_used() -> None:
    registry = ArchitectureRegistry()
    registry.register("PathForCausalLM", "pathlib:Path", provider="pathlib")
    registry.register("Unused", "no_such_module:Nothing", provider="nobody")
    registry.freeze()
    assert registry.get("PathForCausalLM") is Path
    assert registry.names() == ["PathForCausalLM", "Unused"]


def test_an_architecture_has_aliases(tmp_path: Path) -> None:
    registry = ArchitectureRegistry()
    registry.register("AForCausalLM", "pathlib:Path", provider="first", aliases=("AModel", "a"))
    registry.register("BForCausalLM", "pathlib:Path", provider="second", aliases=("AModel", "BModel"))
    registry.register("BModel", "pathlib:PurePath", provider="third")
    registry.freeze()
    assert registry.names() == ["AForCausalLM", "BForCausalLM", "BModel"]
    for raw, name in (
        ({"architectures": ["AForCausalLM"], "model_type": "b"}, "AForCausalLM"),
        ({"architectures": ["AModel"]}, "AForCausalLM"),
        ({"model_type": "a"}, "AForCausalLM"),
        ({"architectures": [], "model_type": "a"}, "AForCausalLM"),
        ({"architectures": ["BModel"]}, "BModel"),
        ({"architectures": ["C"], "model_type": "a"}, "C"),
    ):
        assert registry.resolve_name(raw, tmp_path) == name


def test_an_unknown_architecture_lists_the_installed() -> None:
    registry = ArchitectureRegistry()
    with pytest.raises(ConfigError, match=r"'X'.*Installed: none"):
        registry.get("X")
    registry.register("B", "b:B", provider="b")
    registry.register("A", "a:A", provider="a")
    with pytest.raises(ConfigError, match=r"'X'.*Installed: A, B\."):
        registry.get("X")


def test_an_unknown_gguf_architecture_lists_the_known() -> None:
    registry = gguf_families()
    with pytest.raises(ConfigError, match=r"'x'.*Installed: none"):
        registry.get("x")
    registry.register("b", "pathlib:Path", provider="pathlib")
    assert registry.get("b") is Path
    with pytest.raises(ConfigError, match=r"'x'.*Installed: b\."):
        registry.get("x")
    with pytest.raises(PluginError, match=r"GGUF architecture 'b'.*pathlib.*other"):
        registry.register("b", "pathlib:PurePath", provider="other")


@pytest.mark.parametrize(("count", "rest"), [(17, r"\."), (18, r" and 1 other\."), (19, r" and 2 others\.")])
def test_of_many_names_some_are_listed(count: int, rest: str) -> None:
    registry = gguf_families()
    for name in ascii_lowercase[:count]:
        registry.register(name, "pathlib:Path", provider="pathlib")
    with pytest.raises(ConfigError, match=rf"'7'\. Installed: (\w, ){{16}}\w{rest}"):
        registry.get("7")


def test_a_claimed_name_needs_replaces() -> None:
    registry = ArchitectureRegistry()
    registry.register("A", "pathlib:Path", provider="first")
    with pytest.raises(PluginError, match=r"'A'.*first.*second"):
        registry.register("A", "pathlib:PurePath", provider="second")
    registry.register("A", "pathlib:PosixPath", provider="second", replaces="first")
    from pathlib import PosixPath

    assert registry.get("A") is PosixPath


def test_an_input_processor_is_optional() -> None:
    registry = input_processors()
    registry.register("A", "pathlib:Path", provider="first")
    assert registry.find("A") is Path
    assert registry.find("B") is None
    with pytest.raises(PluginError, match=r"Input processor of architecture 'A'.*first.*second"):
        registry.register("A", "pathlib:PurePath", provider="second")


def test_a_frozen_registry_refuses_registrations() -> None:
    architectures, models = ArchitectureRegistry(), ModelRegistry()
    architectures.freeze()
    models.freeze()
    with pytest.raises(AssertionError):
        architectures.register("A", "a:A", provider="a")
    with pytest.raises(AssertionError):
        models.register("a", Path.cwd, provider="a")


def test_models_by_name_and_by_path(tmp_path: Path) -> None:
    registry = ModelRegistry()
    registry.register("tiny", lambda: tmp_path, provider="me")
    assert registry.locate("tiny") == tmp_path
    assert registry.locate(str(tmp_path)) == tmp_path
    assert registry.locate("./missing/model") == Path("missing/model")
    assert registry.names() == ["tiny"]
    with pytest.raises(ConfigError, match=r"'huge'.*\(tiny\)"):
        registry.locate("huge")
    with pytest.raises(PluginError, match="'tiny'"):
        registry.register("tiny", lambda: tmp_path, provider="you")


@pytest.mark.parametrize("model", ["None", "someone/model"])
def test_hints_name_python_parameters_and_flags(model: str) -> None:
    with pytest.raises(ConfigError) as error:
        ModelRegistry().locate(model)
    assert "--model" not in str(error.value)
