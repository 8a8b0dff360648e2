"""Model directories: one file, shards as transformers writes them, and inconsistent directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from aethermind.checkpoint import Checkpoint
from aethermind.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    config = transformers.Qwen2Config(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=40,
        tie_word_embeddings=False,
    )
    return transformers.Qwen2ForCausalLM(config)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards and their index: a, b in the first, c in the second."""
    safetensors.torch.save_file({"a": torch.ones(2), "b": torch.zeros(3, 1)}, tmp_path / "one.safetensors")
    safetensors.torch.save_file({"c": torch.arange(4)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})
    return tmp_path


def write_index(directory: Path, content: Any) -> None:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (directory / INDEX).write_bytes(text)


@pytest.mark.parametrize("max_shard_size", ["1GB", "5KB"], ids=["single", "sharded"])
def test_tensors_equal_those_that_transformers_saved(
    tmp_path: Path, model: transformers.PreTrainedModel, max_shard_size: str
) -> None:
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / INDEX).is_file() == (max_shard_size == "5KB")
    checkpoint = Checkpoint.open(tmp_path)
    expected = model.state_dict()
    assert set(checkpoint.names) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(checkpoint.array(name), tensor.numpy())
        assert checkpoint.info(name).shape == tuple(tensor.shape)
    assert checkpoint.total_bytes == sum(tensor.nbytes for tensor in expected.values())


def test_shards_are_one_set(sharded: Path) -> None:
    checkpoint = Checkpoint.open(sharded)
    assert checkpoint.names == ("a", "b", "c")
    assert checkpoint.array("c").tolist() == [0, 1, 2, 3]
    assert checkpoint.total_bytes == 8 + 12 + 32
    with pytest.raises(CheckpointError, match="no tensor 'd' among its 3"):
        checkpoint.array("d")


def test_single_file_comes_first(sharded: Path) -> None:
    safetensors.torch.save_file({"z": torch.ones(1)}, sharded / "model.safetensors")
    assert Checkpoint.open(sharded).names == ("z",)


def test_shards_may_be_symbolic_links(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A download cache keeps files elsewhere and links them into the model's directory."""
    blob = tmp_path_factory.mktemp("blobs") / "blob"
    (sharded / "two.safetensors").rename(blob)
    (sharded / "two.safetensors").symlink_to(blob)
    assert Checkpoint.open(sharded).array("c").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (b"{", r"index\.json is not readable JSON.*Fetch the file again"),
        (b"\xff", r"is not readable JSON"),
        (b"[" * 100_000, r"is not readable JSON"),
        ([], r"has no weight_map"),
        ({"weight_map": {}}, r"has no weight_map"),
        ({"weight_map": ["one.safetensors"]}, r"has no weight_map"),
        ({"weight_map": {"a": 1}}, r"puts tensor 'a' into 1, which is not the plain name"),
        (
            {"weight_map": {"a": "../one.safetensors"}},
            r"into '\.\./one\.safetensors', which is not the plain name",
        ),
        ({"weight_map": {"a": "/etc/one.safetensors"}}, r"which is not the plain name"),
        ({"weight_map": {"a": "sub/one.safetensors"}}, r"which is not the plain name"),
        ({"weight_map": {"a": "..\\one.safetensors"}}, r"which is not the plain name"),
        ({"weight_map": {"a": "C:one.safetensors"}}, r"which is not the plain name"),
        ({"weight_map": {"a": "one.safetensors\0.safetensors"}}, r"which is not the plain name"),
        ({"weight_map": {"a": "tokenizer.json"}}, r"not the plain name of a \.safetensors file"),
        ({"weight_map": {"a": ".."}}, r"which is not the plain name"),
        (
            {"weight_map": {"a": "three.safetensors"}},
            r"names the shard three\.safetensors, which is not in the dir",
        ),
        (
            {"weight_map": {"d": "two.safetensors"}},
            r"puts tensor 'd' into two\.safetensors, which does not have it",
        ),
        (
            {"weight_map": {"a": "one.safetensors"}},
            r"one\.safetensors has a tensor 'b', .* puts into no shard",
        ),
    ],
)
def test_invalid_indexes_are_errors_of_one_sentence(sharded: Path, index: Any, says: str) -> None:
    write_index(sharded, index)
    with pytest.raises(CheckpointError, match=says) as caught:
        Checkpoint.open(sharded)
    assert "\n" not in str(caught.value)
    assert str(sharded) in str(caught.value)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    safetensors.torch.save_file({"c": torch.arange(4), "a": torch.ones(2)}, sharded / "two.safetensors")
    with pytest.raises(
        CheckpointError, match=r"two\.safetensors has a tensor 'a', which .* puts into one\.safetensors"
    ):
        Checkpoint.open(sharded)


def test_a_corrupt_shard_is_named(sharded: Path) -> None:
    shard = sharded / "two.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"two\.safetensors is truncated"):
        Checkpoint.open(sharded)


def test_a_directory_without_weights_lists_the_expected_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path)
    for part in (
        str(tmp_path),
        "model.safetensors,",
        INDEX,
        "pytorch_model.bin,",
        "found none of them",
        "load_format='dummy'",
    ):
        assert part in str(caught.value)


def test_a_directory_without_weights_lists_unsupported_files(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "consolidated.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"found consolidated\.safetensors, model\.gguf\."):
        Checkpoint.open(tmp_path)


def test_not_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere is not a directory\. Pass the directory of a model"):
        Checkpoint.open(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model-00001-of-00001.safetensors", "mine.safetensors"])
def test_a_single_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    for other in ("adapter_model.safetensors", name):
        safetensors.torch.save_file({other: torch.ones(2)}, tmp_path / other)
    assert Checkpoint.open(tmp_path).names == (name,)
    safetensors.torch.save_file({"more": torch.ones(2)}, tmp_path / "more.safetensors")
    with pytest.raises(CheckpointError, match=r"has no weights.*more\.safetensors"):
        Checkpoint.open(tmp_path)
