"""Reading config.json before any architecture looks at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aethermind.errors import ConfigError
from aethermind.model.hf_files import architecture_name, read_hf_config, read_optional_json


def test_config_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["A", "B"], "name": "é"}', encoding="utf-8")
    raw = read_hf_config(tmp_path)
    assert raw["name"] == "é"
    assert architecture_name(raw, tmp_path) == "A"


def test_an_optional_file_may_be_absent_but_not_broken(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    assert read_optional_json(path) == {}
    path.write_text('{"eos_token_id": 3}')
    assert read_optional_json(path) == {"eos_token_id": 3}
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        read_optional_json(path)


def test_a_missing_config_json_lists_the_files_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found nothing"):
        read_hf_config(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ConfigError, match=r"found pytorch_model\.bin"):
        read_hf_config(tmp_path)


def test_a_hub_cache_directory_is_hinted_at(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    with pytest.raises(ConfigError, match=r"Pass one of the directories in its snapshots\."):
        read_hf_config(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'"text"', b"[" * 100_000])
def test_broken_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        read_hf_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_model_type_replaces_missing_architectures(tmp_path: Path) -> None:
    assert architecture_name({"model_type": "a"}, tmp_path) == "a"
    assert architecture_name({"model_type": "a", "architectures": None}, tmp_path) == "a"


@pytest.mark.parametrize("value", [None, [], "Qwen2ForCausalLM", [3]])
def test_architectures_must_be_a_list_of_names(tmp_path: Path, value: object) -> None:
    with pytest.raises(ConfigError, match="names no architectures"):
        architecture_name({"architectures": value}, tmp_path)
