"""GGUF files against the library that defines them, and every way in which they can be invalid."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from aethermind.checkpoint.gguf import GgufFile
from aethermind.errors import CheckpointError

VALUES = np.arange(24, dtype=np.float32).reshape(2, 12) / 4
KINDS = {
    "F32": VALUES,
    "F16": VALUES.astype(np.float16),
    "BF16": VALUES.astype(ml_dtypes.bfloat16),
    "F64": VALUES.astype(np.float64),
    "I8": VALUES.astype(np.int8),
    "I16": VALUES.astype(np.int16),
    "I32": VALUES.astype(np.int32),
    "I64": VALUES.astype(np.int64),
}


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fill_tensors(writer: gguf.GGUFWriter) -> None:
    for name, values in KINDS.items():
        if name == "BF16":
            writer.add_tensor(name, values.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, values)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", fill_tensors)


def test_tensors_are_views_on_the_file(path: Path) -> None:
    file = GgufFile(path)
    assert file.names == tuple(KINDS)
    assert file.total_bytes == sum(values.nbytes for values in KINDS.values())
    content = np.frombuffer(file.map, np.uint8)
    for name, values in KINDS.items():
        array = file.array(name)
        assert array.dtype == values.dtype
        assert np.array_equal(array, values)
        assert (file.info(name).dtype_name, file.info(name).shape) == (name, values.shape)
        assert np.shares_memory(array, content)
        assert not array.flags.writeable
        assert array.flags.c_contiguous


def test_the_alignment_of_a_file_is_respected(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(256)
        fill_tensors(writer)

    file = GgufFile(write(tmp_path / "aligned.gguf", fill))
    assert all(file.info(name).begin % 256 == 0 for name in file.names)
    assert np.array_equal(file.array("I64"), KINDS["I64"])


def test_metadata_of_every_type(tmp_path: Path) -> None:
    scalars: dict[str, tuple[str, Any]] = {
        "uint8": ("add_uint8", 200),
        "int8": ("add_int8", -3),
        "uint16": ("add_uint16", 60_000),
        "int16": ("add_int16", -300),
        "uint32": ("add_uint32", 2**32 - 1),
        "int32": ("add_int32", -70_000),
        "uint64": ("add_uint64", 2**63),
        "int64": ("add_int64", -(2**40)),
        "float32": ("add_float32", 0.25),
        "float64": ("add_float64", 0.1),
        "bool": ("add_bool", True),
        "string": ("add_string", "Jürgen 漢字"),
    }

    def fill(writer: gguf.GGUFWriter) -> None:
        for key, (method, value) in scalars.items():
            getattr(writer, method)(key, value)
        writer.add_array("numbers", [1, 2, 3])
        writer.add_array("texts", ["a", "", "ü"])

    metadata = GgufFile(write(tmp_path / "keys.gguf", fill)).metadata
    assert {key: metadata[key] for key in scalars} == {key: value for key, (_, value) in scalars.items()}
    assert metadata["numbers"].tolist() == [1, 2, 3]
    texts = metadata["texts"]
    assert len(texts) == 3
    assert list(texts) == list(texts) == ["a", "", "ü"]
    assert metadata["general.architecture"] == "llama"


def test_strings_of_a_long_array_are_picked_by_index(tmp_path: Path) -> None:
    texts = [f"t{i}" * (i % 3) for i in range(3000)]
    strings = GgufFile(write(tmp_path / "long.gguf", lambda writer: writer.add_array("texts", texts))).metadata["texts"]
    assert list(strings) == texts
    for indices in ([], [0], [2999], [5, 6, 1023, 1024, 2047, 2050, 2999], range(3000)):
        assert list(strings.select(indices)) == [texts[i] for i in indices]


def test_unsupported_types_are_named_at_access(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("plain", np.zeros((2, 64), np.float32))
        for name, kind, nbytes in (("first", "Q8_1", 40), ("second", "Q8_1", 40)):
            type = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, np.zeros((2, nbytes), np.uint8), raw_dtype=type)

    file = GgufFile(write(tmp_path / "blocks.gguf", fill))
    assert file.info("plain").shape == (2, 64)
    for read in (file.info, file.array):
        with pytest.raises(CheckpointError, match=r"'first' in the quantised type Q8_1.*\(as 2 of its 3 .*Q4_K.*BF16"):
            read("first")
    with pytest.raises(CheckpointError, match="Q8_1"):
        _ = file.total_bytes


def test_an_unknown_name(path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tensor 'Q' among its 8"):
        GgufFile(path).array("Q")


def test_a_file_truncated_anywhere_is_an_error(path: Path) -> None:
    content = path.read_bytes()
    last = GgufFile(path).info("I64").end
    begin = len(content) - last
    for length in (*range(4, begin, 7), begin, begin + 1, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="is truncated") as caught:
            GgufFile(path)
        assert "\n" not in str(caught.value)


def header(*parts: bytes, version: int = 3, num_tensors: int = 0, num_keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(parts)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int, begin: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, begin)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\x03\x04", "does not begin with GGUF"),
        (header(version=1), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 3 << 24, 0, 0), "version 50331648"),
        (header(num_keys=2**60), "is truncated"),
        (header(num_tensors=2**60), "is truncated"),
        (header(struct.pack("<Q", 2**64 - 1), num_keys=1), "is truncated"),
        (header(text(b"k") + struct.pack("<IIQ", 9, 8, 2**64 - 1), num_keys=1), "is truncated"),
        (header(text(b"k") + struct.pack("<IIQQ", 9, 8, 2, 2**64 - 1), num_keys=1), "is truncated"),
        (header(text(b"k") + struct.pack("<IIQ", 9, 4, 2**62), num_keys=1), "is truncated"),
        (header(text(b"\xff"), num_keys=1), "not UTF-8"),
        (header(text(b"k") + struct.pack("<I", 99), num_keys=1), "unknown type 99 for 'k'"),
        (header(text(b"k") + struct.pack("<IIQ", 9, 9, 0), num_keys=1), "array of type 9 for 'k'"),
        (header((text(b"k") + struct.pack("<IB", 0, 1)) * 2, num_keys=2), "the key 'k' twice"),
        (
            header(text(b"general.alignment") + struct.pack("<II", 4, 3), num_keys=1),
            "general.alignment 3, which is not a multiple of 8",
        ),
        (header(tensor(b"t", (1,) * 5, 0, 0), num_tensors=1), "rank 5"),
        (header(tensor(b"t", (0,), 0, 0) * 2, num_tensors=2), "the tensor 't' twice"),
        (header(tensor(b"t", (1,), 4, 0), num_tensors=1), "unknown type 4"),
        (header(tensor(b"t", (0,), 0, 3), num_tensors=1), "at byte 3 of the data"),
        (header(tensor(b"t", (0, 2**63), 0, 0), num_tensors=1), "too big to address"),
        (header(tensor(b"t", (9,), 0, 0), bytes(39), num_tensors=1), "ends at byte 36 of the data"),
        (header(num_keys=2**63), "is truncated"),
        (header(num_tensors=2**63), "is truncated"),
        (header(tensor(b"t", (8,), 0, 2**63), num_tensors=1), "is truncated"),
        (header(tensor(b"t", (256, 2**50), 12, 0), num_tensors=1), "is truncated"),
        (header(struct.pack("<Q", 1) + b"t" + struct.pack("<I", 2**32 - 1), num_tensors=1), "rank 4294967295"),
        (header(tensor(b"t", (48, 2), 2, 0), num_tensors=1), "multiples of 32 values"),
        (header(tensor(b"t", (896, 2), 12, 0), num_tensors=1), "multiples of 256 values"),
        (header(tensor(b"t", (32,), 8, 0), num_tensors=1), "which is for matrices"),
        (header(tensor(b"t", (32, 4), 8, 0), bytes(31 + 135), num_tensors=1), "is truncated"),
        (
            header(tensor(b"t", (32, 4), 8, 0), tensor(b"u", (8,), 0, 64), bytes(512), num_tensors=2),
            "'u' begins at byte 64 of the data, 't' ends at byte 136",
        ),
    ],
)
def test_invalid_files_are_errors_of_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=says) as caught:
        GgufFile(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_invalid_utf8_in_a_vocabulary_is_an_error_at_iteration(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header(text(b"k") + struct.pack("<IIQ", 9, 8, 1) + text(b"\xff"), num_keys=1))
    strings = GgufFile(path).metadata["k"]
    for read in (strings, strings.select([0])):
        with pytest.raises(CheckpointError, match="not UTF-8"):
            list(read)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        GgufFile(tmp_path / "nowhere.gguf")
