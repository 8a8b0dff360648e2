"""config.json of every installed architecture with a field of a wrong type or size: a model, or a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.scale import scaled

from aethermind import Runtime
from aethermind.cli.models import estimate_memory
from aethermind.engine.config import EngineConfig
from aethermind.errors import AetherMindError, ConfigError
from aethermind.testing.families import cases_of

_RUNTIME = Runtime.boot()
_ANYTHING = (0, -1, 3, 2**30, 1.5, float("nan"), "x", None, True, [], [1], {"x": 1})


def _compile(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config))
    estimate_memory(_RUNTIME, directory, EngineConfig(device="numpy", load_format="dummy", fallback="allow"))


@pytest.mark.parametrize("architecture", [name for name in _RUNTIME.architectures.names() if cases_of(_RUNTIME, name)])
def test_a_field_of_any_type_and_size_makes_a_model_or_a_sentence(tmp_path: Path, architecture: str) -> None:
    rng, case = Random(architecture), cases_of(_RUNTIME, architecture)[0]
    config = {**case.config, "architectures": [architecture]}
    _compile(tmp_path, config)
    for _ in range(scaled(1000)):
        field = rng.choice(sorted(case.config))
        value = rng.choice(_ANYTHING)
        try:
            _compile(tmp_path, {**config, field: value})
        except AetherMindError as error:
            assert 0 < len(str(error)) < 1000, (field, value)


def test_counts_that_no_model_has_are_refused_before_anything_is_listed(tmp_path: Path) -> None:
    config = {**cases_of(_RUNTIME, "LlamaForCausalLM")[0].config, "architectures": ["LlamaForCausalLM"]}
    for field in ("num_hidden_layers", "num_attention_heads"):
        with pytest.raises(ConfigError, match=f"{field} in config.json is 1,073,741,824, which is more than any model"):
            _compile(tmp_path, {**config, field: 2**30})


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (TypeError("'str' and 'int'"), r"does not describe a {name}: .* {provider} .*\(TypeError: 'str'"),
        (KeyError("hidden_size"), r"config\.json has no hidden_size, which a {name} needs"),
    ],
    ids=["a type", "a missing field"],
)
@pytest.mark.parametrize(
    ("created", "name", "provider"),
    [("model", "LlamaForCausalLM", "aethermind-llama"), ("mtp", "DeepseekV3ForCausalLM", "aethermind-deepseek")],
)
def test_what_a_package_raises_for_a_field_becomes_a_sentence_that_names_it(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, sentence: str, created: str, name: str, provider: str
) -> None:
    def create(_self: object, _raw: object) -> None:
        raise raised

    architectures = _RUNTIME.architectures
    method = "create_mtp" if created == "mtp" else "create"
    monkeypatch.setattr(type(architectures.get(name)), method, create)
    with pytest.raises(ConfigError, match=sentence.format(name=name, provider=provider)):
        getattr(architectures, f"create_{created}")(name, {})
