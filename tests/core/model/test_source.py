"""The model source of a path: a directory or a .gguf file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import save_file
from tests.core.checkpoint.packed_layers import random_layer

from aethermind.errors import CheckpointError, ConfigError, TokenizerError
from aethermind.model.gguf_source import GgufSource
from aethermind.model.registry import gguf_families
from aethermind.model.source import DirectorySource, RetokenizedSource, open_source


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF", "not-there.gguf"])
def test_gguf_files_are_recognised_by_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.gguf").touch()
    source = open_source(tmp_path / name, gguf_families())
    assert isinstance(source, GgufSource)
    assert source.path == tmp_path / name


def test_anything_else_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "folder.gguf"):
        assert open_source(path, gguf_families()) == DirectorySource(path)


def test_a_file_of_another_name_says_what_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "model.ggml"
    path.touch()
    with pytest.raises(ConfigError, match=r"is a file, and not a \.gguf one.*directory that holds config\.json"):
        open_source(path, gguf_families()).config()


def test_each_method_of_a_directory_reads_only_its_files(tmp_path: Path) -> None:
    source = DirectorySource(tmp_path)
    assert source.generation() == {}
    (tmp_path / "generation_config.json").write_text('{"top_k": 3}')
    assert source.generation() == {"top_k": 3}
    with pytest.raises(ConfigError, match=r"found generation_config\.json.*\.gguf file"):
        source.config()
    with pytest.raises(TokenizerError):
        source.tokenizer()
    with pytest.raises(CheckpointError, match="no weights"):
        source.weights()


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_quantize_config_json_describes_packed_weights(tmp_path: Path, name: str) -> None:
    """Old versions of AutoGPTQ and AutoAWQ leave config.json as it was."""
    layer = random_layer(16, 64, method="awq")
    save_file({f"m.{end}": tensor for end, tensor in layer.tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    described = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    (tmp_path / name).write_text(json.dumps(described))
    assert "m.weight" in DirectorySource(tmp_path).weights().names


@pytest.mark.parametrize(("num_rows", "fits"), [(3, False), (4, True), (64, True), (None, True)])
def test_a_replaced_tokenizer_with_more_tokens_than_rows_is_refused(num_rows: int | None, fits: bool) -> None:
    tokenizer = SimpleNamespace(vocab_size=4)
    model: Any = SimpleNamespace(config=lambda: {} if num_rows is None else {"vocab_size": num_rows})
    other: Any = SimpleNamespace(tokenizer=lambda: tokenizer, path=Path("there"))
    source: Any = RetokenizedSource(model, other)
    if fits:
        assert source.tokenizer() is tokenizer
        return
    with pytest.raises(TokenizerError, match="tokenizer at 'there' has 4 tokens and the model 3"):
        source.tokenizer()
