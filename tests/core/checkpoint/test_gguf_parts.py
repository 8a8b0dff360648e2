"""Models in several .gguf files, as the library that defines the format cuts them."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.gguf_tensors import GgufParts
from aethermind.errors import CheckpointError

TENSORS = {f"t{i}": np.full((2, 32), i, np.float32) for i in range(5)}


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The first of three parts."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "toy", split_max_tensors=2)
    for name, values in TENSORS.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "model-00001-of-00003.gguf"


def part(first: Path, number: int) -> Path:
    return first.with_name(f"model-{number:05d}-of-00003.gguf")


def test_parts_form_one_set_of_tensors(first: Path) -> None:
    parts = GgufParts(first)
    assert parts.names == tuple(TENSORS)
    assert parts.paths == tuple(part(first, number) for number in (1, 2, 3))
    assert parts.total_bytes == sum(values.nbytes for values in TENSORS.values())
    for name, values in TENSORS.items():
        assert np.array_equal(parts.array(name), values)
        assert parts.info(name).shape == values.shape
    assert parts.metadata["general.architecture"] == "toy"
    with pytest.raises(CheckpointError, match="no tensor 'x'"):
        parts.info("x")


def test_one_file_is_a_whole_model(first: Path) -> None:
    writer = gguf.GGUFWriter(first.with_name("one.gguf"), "toy")
    writer.add_tensor("t", TENSORS["t3"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert GgufParts(first.with_name("one.gguf")).names == GgufFile(first.with_name("one.gguf")).names == ("t",)


def test_a_part_that_is_missing_is_named(first: Path) -> None:
    part(first, 2).unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.gguf, part 2 of 3 of the model, is not there"):
        GgufParts(first)


@pytest.mark.parametrize("name", ["model-00002-of-00003.gguf", "renamed.gguf"])
def test_a_part_other_than_the_first_is_refused(first: Path, name: str) -> None:
    if name == "renamed.gguf":
        first.rename(first.with_name(name))
    with pytest.raises(CheckpointError, match=r"is one of 3 parts of a model\. Pass the first.*-00001-of-00003\.gguf"):
        GgufParts(first.with_name(name))


@pytest.mark.parametrize("source", [1, 3])
def test_parts_with_wrong_names_are_refused(first: Path, source: int) -> None:
    shutil.copy(part(first, source), part(first, 2))
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.gguf is not part 2 of 3, as it is named"):
        GgufParts(first)
