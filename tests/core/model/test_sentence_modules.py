"""The files of sentence-transformers beside a model, as several of its versions write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aethermind.errors import ConfigError
from aethermind.model.hf_files import read_pooling, read_text_limit

OLD = "sentence_transformers.models."
NEW = "sentence_transformers.sentence_transformer.modules."


def write(directory: Path, pooling: Any, modules: list[tuple[str, str]] | None = None) -> Path:
    folder = directory / next((path for kind, path in modules or () if kind.endswith("Pooling")), "1_Pooling")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(pooling))
    if modules is not None:
        listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(modules)]
        (directory / "modules.json").write_text(json.dumps(listed))
    return directory


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({}, None),
    ],
)
def test_pooling(tmp_path: Path, described: Any, expected: str | None) -> None:
    assert read_pooling(tmp_path) is None
    assert read_pooling(write(tmp_path, described)) == expected


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({"pooling_mode_max_tokens": True}, "pooled by max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls, mean"),
        ({"pooling_mode": ["cls", "max"]}, "cls, max"),
        ({"pooling_mode": 3}, "pooled by 3"),
    ],
)
def test_unsupported_pooling_is_named(tmp_path: Path, described: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"{says}.*Say which pooling to use instead"):
        read_pooling(write(tmp_path, described))


def test_module_folders_have_any_name(tmp_path: Path) -> None:
    modules = [(f"{OLD}Transformer", ""), (f"{NEW}pooling.Pooling", "7_Mine"), (f"{OLD}Normalize", "2_Normalize")]
    assert read_pooling(write(tmp_path, {"pooling_mode": "cls"}, modules)) == "cls"


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ([("x.Transformer", ""), ("x.Pooling", "1"), ("x.Dense", "2")], "a module 'Dense'"),
        ([("x.Transformer", ""), ("x.Pooling", "1"), ("x.Pooling", "2")], "2 modules that pool"),
        ([("x.Pooling", "..")], "no folder beside it"),
    ],
)
def test_unsupported_modules_are_named(tmp_path: Path, modules: list[tuple[str, str]], says: str) -> None:
    (tmp_path / "model").mkdir()
    listed = [{"path": path, "type": kind} for kind, path in modules]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ConfigError, match=says):
        read_pooling(tmp_path / "model")


@pytest.mark.parametrize("content", ["{", "3", '[{"path": ""}]', "[3]"])
def test_an_invalid_modules_json_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=r"modules\.json' is not a list of modules"):
        read_pooling(tmp_path)


@pytest.mark.parametrize(
    ("limit", "of_tokenizer", "expected"),
    [(256, 512, 256), (None, 512, 512), (None, 10**30, None), (None, 1e30, None), (None, None, None)],
)
def test_the_limit_of_a_text(tmp_path: Path, limit: Any, of_tokenizer: Any, expected: int | None) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": of_tokenizer}))
    assert read_text_limit(tmp_path) is None, "no other model cuts texts"
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    assert read_text_limit(tmp_path) == expected


@pytest.mark.parametrize("limit", [0, -1, 2.5, "8", True])
def test_an_invalid_text_limit_is_an_error(tmp_path: Path, limit: Any) -> None:
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    with pytest.raises(ConfigError, match=r"max_seq_length of .* should be a positive integer"):
        read_text_limit(tmp_path)
