"""The offline API takes an engine's options by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

import pytest

import aethermind
from aethermind import LLM, EngineOptions
from aethermind.engine.config import EngineConfig
from aethermind.errors import InvalidArgumentError


def test_the_documented_options_are_those_that_are_checked() -> None:
    written = {"tokenizer": str | None, "draft_model": str | None, "adapters": Mapping[str, str] | None}
    assert get_type_hints(EngineOptions) | written == get_type_hints(EngineConfig)


def test_paths_may_be_given_where_names_may() -> None:
    given = EngineConfig.of(tokenizer=Path("a/b"), speculative_method="draft", draft_model=Path("c"))
    assert given == EngineConfig(tokenizer="a/b", speculative_method="draft", draft_model="c")
    assert EngineConfig.of() == EngineConfig()


@pytest.mark.parametrize("name", EngineOptions.__annotations__)
def test_what_an_option_cannot_be_is_said_in_a_sentence_with_its_name(name: str) -> None:
    default = getattr(EngineConfig(), name)
    for value in (object(), [], float("nan"), *(() if default is None else (None,))):
        with pytest.raises(InvalidArgumentError, match=rf"^{name} should be .+, got .+\.$"):
            EngineConfig(**{name: value})


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="no option 'max_seq_len'; did you mean max_model_len"):
        LLM("demo", max_seq_len=128)  # type: ignore[call-arg]


def test_the_package_exports_what_it_names() -> None:
    for name in aethermind.__all__:
        assert getattr(aethermind, name) is not None
