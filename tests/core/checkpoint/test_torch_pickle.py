"""What torch.save writes, read without copies where it can be; what is unsafe, broken or unreadable, refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from aethermind.checkpoint import Checkpoint, TorchFile
from aethermind.errors import CheckpointError

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


class Opener:
    """Unpickled by a reader that trusts its file, it makes a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.directory,)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pytorch_model.bin"


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    config = transformers.Qwen2Config(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=40,
        tie_word_embeddings=True,
    )
    return transformers.Qwen2ForCausalLM(config).to(torch.bfloat16)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_model_of_transformers(path: Path, model: transformers.PreTrainedModel, is_zip: bool) -> None:
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=is_zip)
    file = TorchFile(path)
    expected = model.state_dict()
    assert file.names == tuple(expected)
    for name, tensor in expected.items():
        array = file.array(name)
        assert file.info(name).shape == array.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(array.astype(np.float32), tensor.float().numpy())
    assert file.total_bytes == sum(tensor.nbytes for tensor in expected.values())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_bit_for_bit_without_a_copy(path: Path, dtype: torch.dtype) -> None:
    bits = torch.arange(48, dtype=torch.uint8)
    tensor = (bits % 2 == 0) if dtype == torch.bool else bits.view(dtype)
    torch.save({"flat": tensor, "scalar": tensor[3], "none": tensor[:0].reshape(0, 4)}, path)
    file = TorchFile(path)
    assert file.info("flat").dtype_name == DTYPES[dtype]
    array = file.array("flat")
    assert array.dtype == file.info("flat").dtype
    assert array.tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    assert array.ctypes.data == file.array("flat").ctypes.data
    assert file.array("scalar").tobytes() == tensor[3:4].view(torch.uint8).numpy().tobytes()
    assert file.array("scalar").shape == ()
    assert file.array("none").shape == (0, 4)
    with pytest.raises(ValueError, match="read-only"):
        array[:] = array


def test_strided_and_shared_tensors_and_parameters(path: Path) -> None:
    base = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    torch.save({"base": base, "turned": base.t(), "same": base, "tuned": torch.nn.Parameter(torch.ones(2))}, path)
    file = TorchFile(path)
    assert file.array("turned").flags.c_contiguous
    assert file.array("turned").tolist() == base.t().tolist()
    assert file.array("same").ctypes.data == file.array("base").ctypes.data
    assert file.array("tuned").tolist() == [1, 1]
    assert file.total_bytes == 3 * 12 + 8


def test_arrays_outlive_the_file_object(path: Path) -> None:
    torch.save({"a": torch.arange(1000)}, path)
    array = TorchFile(path).array("a")
    path.unlink()
    assert array.sum() == 499_500


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_weights_beside_a_trainer_s_state(path: Path, key: str) -> None:
    torch.save({"epoch": 3, key: {"a": torch.ones(2)}, "optimizer": {"lr": 0.1}}, path)
    assert TorchFile(path).names == ("a",)


def test_unknown_names(path: Path) -> None:
    torch.save({"a": torch.ones(2)}, path)
    file = TorchFile(path)
    for ask in (file.info, file.array):
        with pytest.raises(CheckpointError, match="no tensor 'b' among its 1"):
            ask("b")


@pytest.mark.parametrize("is_zip", [True, False])
def test_pickled_code_is_refused_and_not_run(path: Path, tmp_path: Path, is_zip: bool) -> None:
    target = tmp_path / "made"
    torch.save({"a": Opener(target)}, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError, match=r"asks for posix\.mkdir .* could run any code") as caught:
        TorchFile(path)
    assert not target.exists()
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 200, -30])
@pytest.mark.parametrize("is_zip", [True, False])
def test_truncated_files_are_errors_of_one_sentence(path: Path, keep: int, is_zip: bool) -> None:
    torch.save({"a": torch.ones(100)}, path, _use_new_zipfile_serialization=is_zip)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is corrupt, or is no PyTorch checkpoint") as caught:
        TorchFile(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"hello, world", b"\x80\x02.", b"PK\x03\x04" + bytes(64), b"{}"])
def test_other_files_are_errors_of_one_sentence(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is corrupt, or is no PyTorch checkpoint") as caught:
        TorchFile(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([torch.ones(1)], "holds a list, not tensors by name"),
        (torch.ones(1), "holds a Tensor, not tensors by name"),
        ({"a": 3}, "holds 'a' of type int"),
        ({5: torch.ones(1)}, "holds 5 of type Tensor"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, r"'a' that is not plain and dense \(torch\.complex64"),
        ({"a": torch.eye(2).to_sparse()}, r"not plain and dense \(torch\.float32, torch\.sparse_coo"),
        ({"a": torch.empty(2, device="meta")}, r"not plain and dense .* meta\)"),
    ],
)
def test_objects_other_than_tensors_are_errors_of_one_sentence(path: Path, content: Any, says: str) -> None:
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=says) as caught:
        TorchFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.pt cannot be read: No such file"):
        TorchFile(tmp_path / "none.pt")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "anything.pt", "consolidated.00.pth"])
def test_directories_with_one_file(tmp_path: Path, name: str) -> None:
    torch.save({"a": torch.arange(3)}, tmp_path / name)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.array("a").tolist() == [0, 1, 2]
    assert checkpoint.paths == (tmp_path / name,)


def test_two_files_are_ambiguous(tmp_path: Path) -> None:
    for name in ("one.pt", "two.pth"):
        torch.save({"a": torch.ones(1)}, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"\.pt or \.pth file, found one\.pt, two\.pth\."):
        Checkpoint.open(tmp_path)


def write_shards(directory: Path) -> None:
    torch.save({"a": torch.ones(2), "b": torch.zeros(3, 1)}, directory / "one.bin")
    torch.save({"c": torch.arange(4)}, directory / "two.bin")
    weight_map = {"a": "one.bin", "b": "one.bin", "c": "two.bin"}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_one_set(tmp_path: Path) -> None:
    write_shards(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names == ("a", "b", "c")
    assert checkpoint.array("c").tolist() == [0, 1, 2, 3]
    assert checkpoint.total_bytes == 8 + 12 + 32
    assert [path.name for path in checkpoint.paths] == ["one.bin", "two.bin"]


def test_shards_that_disagree_with_the_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    torch.save({"c": torch.arange(4), "d": torch.ones(1)}, tmp_path / "two.bin")
    with pytest.raises(CheckpointError, match=r"two\.bin has a tensor 'd', which .* puts into no shard"):
        Checkpoint.open(tmp_path)


def test_an_index_names_bin_files_only(tmp_path: Path) -> None:
    index = tmp_path / "pytorch_model.bin.index.json"
    for shard in ("../one.bin", "one.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(CheckpointError, match=r"not the plain name of a \.bin file"):
            Checkpoint.open(tmp_path)


def test_safetensors_come_first(tmp_path: Path) -> None:
    write_shards(tmp_path)
    torch.save({"pickled": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    safetensors.torch.save_file({"safe": torch.ones(1)}, tmp_path / "model.safetensors")
    assert Checkpoint.open(tmp_path).names == ("safe",)
