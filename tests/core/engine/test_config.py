"""Options of an engine that take several forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aethermind.engine.config import EngineConfig
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"sql": "./a"}, {"sql": "./a"}),
        ({"sql": Path("a"), "law": "b"}, {"sql": "a", "law": "b"}),
        (["sql=./a", "law=b"], {"sql": "./a", "law": "b"}),
        (("dir/law", Path("sql")), {"law": "dir/law", "sql": "sql"}),
        (["a=b=c"], {"a": "b=c"}),
        ({}, {}),
        (None, None),
    ],
)
def test_adapters_have_names(given: Any, named: dict[str, str] | None) -> None:
    assert EngineConfig(adapters=given).adapters == named
    assert EngineConfig.of(adapters=given).adapters == named


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a=b"
    path.mkdir()
    assert EngineConfig(adapters=[str(path)]).adapters == {"a=b": str(path)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("sql=./a", "should be a mapping, or a list of one or more, got 'sql=./a'"),
        (3, "should be a mapping, or a list of one or more, got 3"),
        ({"": "a"}, "has a name and a path, got '' and 'a'"),
        ({"a": ""}, "has a name and a path, got 'a' and ''"),
        ({3: "a"}, "has a name and a path, got 3 and 'a'"),
        ([3], "has a name and a path, got None and 3"),
        ([""], "has a name and a path"),
        (["a=x", "a=y"], "Two adapters are called 'a'; write NAME=PATH"),
        (["x/a", "y/a"], "Two adapters are called 'a'; write NAME=PATH"),
    ],
)
def test_adapters_that_cannot_be_told_apart_are_refused(given: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        EngineConfig(adapters=given)
