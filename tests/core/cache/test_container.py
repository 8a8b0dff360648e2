"""Blocks as bytes: what was written is read again, by the safetensors library too, and nothing else is believed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from aethermind.cache.serialization import BlockTensor, StoredBlocks, read_blocks, write_blocks
from aethermind.errors import CacheContentError, InvalidArgumentError

DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "int64"]


def numpy_dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def array_of(tensor: BlockTensor) -> Any:
    return np.frombuffer(tensor.data, numpy_dtype(tensor.dtype_name)).reshape(tensor.shape)


def tensor_of(dtype_name: str, shape: tuple[int, ...], seed: int) -> BlockTensor:
    values = np.random.default_rng(seed).integers(0, 256, (*shape, numpy_dtype(dtype_name).itemsize), np.uint8)
    return BlockTensor(dtype_name, shape, values.tobytes())


@st.composite
def stored(draw: st.DrawFn) -> StoredBlocks:
    num_blocks = draw(st.integers(0, 3))
    names = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3, unique=True))
    tensors = {}
    for seed, name in enumerate(names):
        inner = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        tensors[name] = tensor_of(draw(st.sampled_from(DTYPES)), (num_blocks, *inner), seed)
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return StoredBlocks(draw(text), draw(text), draw(st.integers(0, 2**40)), tensors, {"note": draw(text)})


def small() -> StoredBlocks:
    tensors = {
        "k_cache": tensor_of("bfloat16", (2, 2, 4, 3), 0),
        "k_scale": tensor_of("float32", (2, 2, 4), 1),
    }
    return StoredBlocks("demo bfloat16", "ab12", 7, tensors)


@given(stored())
def test_a_container_is_read_as_it_was_written(blocks: StoredBlocks) -> None:
    assert read_blocks(write_blocks(blocks), blocks.fingerprint) == blocks


def test_the_safetensors_library_can_read_a_container() -> None:
    blocks = small()
    loaded = dict(safetensors.deserialize(write_blocks(blocks)))
    assert loaded.keys() == blocks.tensors.keys()
    for name, tensor in blocks.tensors.items():
        assert bytes(loaded[name]["data"]) == tensor.data
        assert tuple(loaded[name]["shape"]) == tensor.shape
    assert {name: entry["dtype"] for name, entry in loaded.items()} == {"k_cache": "BF16", "k_scale": "F32"}


def test_values_are_aligned_and_not_copied() -> None:
    data = bytearray(write_blocks(small()))
    tensor = read_blocks(data).tensors["k_cache"]
    assert isinstance(tensor.data, memoryview)
    assert tensor.data.obj is data
    assert data.index(bytes(tensor.data)) % 64 == 0
    assert array_of(tensor).shape == (2, 2, 4, 3)


@given(st.data())
def test_a_changed_byte_is_detected(data: st.DataObject) -> None:
    whole = bytearray(write_blocks(small()))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= data.draw(st.integers(1, 255))
    try:
        assert read_blocks(whole) == small()  # blanks that pad the header mean nothing
    except CacheContentError as error:
        assert "Delete them; they can be computed again." in str(error)


@given(st.integers(0, 10_000))
def test_a_truncated_container_is_detected(length: int) -> None:
    whole = write_blocks(small())
    with pytest.raises(CacheContentError):
        read_blocks(whole[: length % len(whole)])
    with pytest.raises(CacheContentError, match="checksum"):
        read_blocks(whole + b"\0")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CacheContentError):
        read_blocks(data)
    with pytest.raises(CacheContentError):
        read_blocks(len(data).to_bytes(8, "little") + data)


def test_another_file_in_the_same_format_is_refused() -> None:
    with pytest.raises(CacheContentError, match="have no metadata of the format aethermind-kv-blocks/1"):
        read_blocks(safetensors.numpy.save({"weight": np.zeros(3, np.float32)}))


def test_blocks_of_another_model_are_refused() -> None:
    data = write_blocks(small())
    with pytest.raises(CacheContentError, match="are of 'demo bfloat16', and those of 'demo int8' are needed"):
        read_blocks(data, "demo int8")
    assert read_blocks(data).fingerprint == "demo bfloat16"


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (BlockTensor("float32", (2, 3), b"1234"), "comes with 4 bytes; it should have 24"),
        (BlockTensor("int8", (3, 1), b"123"), "be of 2 blocks like the others"),
        (BlockTensor("complex64", (2,), b"1234"), "'complex64'; a container takes float32"),
    ],
)
def test_invalid_tensors_cannot_be_written(tensor: BlockTensor, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        write_blocks(StoredBlocks("", "", 0, {"a": BlockTensor("int8", (2,), b"12"), "b": tensor}))


def test_names_of_the_format_s_own_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'checksum'"):
        write_blocks(StoredBlocks("f", "h", 1, {}, {"checksum": "mine"}))
    tensor = tensor_of("int8", (1, 2), 0)
    for name in ("__metadata__", "state/0"):  # the latter would be read as a recurrent state
        with pytest.raises(InvalidArgumentError, match=repr(name)):
            write_blocks(StoredBlocks("f", "h", 1, {name: tensor}))
    stored = StoredBlocks("f", "h", 1, {"states": tensor}, states={"state/0": tensor, "0": tensor})
    assert read_blocks(write_blocks(stored)) == stored
