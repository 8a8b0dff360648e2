"""Files against the safetensors library; hostile files against one-sentence errors."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aethermind.checkpoint import SafetensorsFile
from aethermind.checkpoint.safetensors import MAX_HEADER_BYTES
from aethermind.errors import CheckpointError


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(7, 5, generator=generator) * 4
    dtypes = [
        *(
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
        ),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    ]
    return {
        **{f"as_{dtype}": values.to(dtype) for dtype in dtypes},
        "unsigned": values.abs().to(torch.uint8),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "odd_bytes": torch.arange(3, dtype=torch.uint8),
        "große/名": values.reshape(5, 1, 7).clone(),
    }


def header(entries: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_values_equal_the_library_s(path: Path) -> None:
    safetensors.torch.save_file(tensors(), path, metadata={"format": "pt", "note": "ü"})
    file = SafetensorsFile(path)
    with safetensors.safe_open(path, framework="pt") as reference:
        assert set(file.names) == set(reference.keys())
        assert file.metadata == reference.metadata()
        for name in file.names:
            expected = reference.get_tensor(name)
            array = file.array(name)
            assert array.shape == tuple(expected.shape) == file.info(name).shape
            assert array.dtype == file.info(name).dtype
            assert array.tobytes() == expected.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert file.total_bytes == sum(file.array(name).nbytes for name in file.names)
    assert file.array("as_torch.bfloat16").dtype == ml_dtypes.bfloat16


def test_arrays_are_read_only_views_that_outlive_the_file_object(path: Path) -> None:
    safetensors.torch.save_file({"x": torch.arange(6.0).reshape(2, 3)}, path)
    file = SafetensorsFile(path)
    one, two = file.array("x"), file.array("x")
    assert np.shares_memory(one, two)
    assert one.flags.c_contiguous
    assert not one.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        one[0, 0] = 1
    del file, two
    gc.collect()
    assert one.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_unaligned_values_are_read(path: Path) -> None:
    data = np.array([1.5, -2], np.float32).tobytes()
    text = json.dumps({"b": entry("U8", [1], 0, 1), "x": entry("F32", [2], 1, 9)}).encode()
    text += b" " * ((-len(text)) % 8)
    array = SafetensorsFile(written(path, header(text, b"\x07" + data))).array("x")
    assert not array.flags.aligned
    assert array.tolist() == [1.5, -2]


def test_a_file_without_tensors_is_valid(path: Path) -> None:
    file = SafetensorsFile(written(path, header({})))
    assert file.names == ()
    assert file.metadata == {}
    assert file.total_bytes == 0


def test_unknown_name(path: Path) -> None:
    safetensors.torch.save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match="has no tensor 'y' among its 1"):
        SafetensorsFile(path).array("y")


BAD_FILES = {
    "empty": (b"", r"has 0 bytes, fewer than the 8"),
    "seven_bytes": (b"\0" * 7, r"has 7 bytes, fewer than the 8"),
    "header_of_2_63": (
        header({}, length=2**63),
        r"announces a header of 9223372036854775808 bytes, but only 2 of",
    ),
    "header_of_2_64": (header({}, length=2**64 - 1), r"announces a header of 18446744073709551615 bytes"),
    "header_cut_off": (
        header({"x": entry("U8", [1], 0, 1)}, b"1")[:20],
        r"but only 12 of its 20 bytes are left",
    ),
    "no_header": (header(b""), r"header of 0 bytes that does not begin with a brace"),
    "not_json": (header(b"{nonsense}"), r"header of 10 bytes that is not valid JSON"),
    "not_utf8": (header(b'{"\xff": 1}'), r"not valid JSON .*utf-8"),
    "list": (header([1]), r"does not begin with a brace"),
    "space_first": (header(b" {}"), r"does not begin with a brace"),
    "nested": (header(b'{"a":' * 100_000), r"not valid JSON"),
    "endless_number": (header(b'{"a":' + b"9" * 5000 + b"}"), r"not valid JSON"),
    "duplicate": (
        header(b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{}}'),
        r"duplicate key 'x'",
    ),
    "duplicate_inside": (header(b'{"x":{"dtype":"U8","dtype":"I8"}}'), r"duplicate key 'dtype'"),
    "nan": (header(b'{"x":{"dtype":"U8","shape":[NaN],"data_offsets":[0,0]}}'), r"NaN is not JSON"),
    "entry_is_list": (header({"x": [1]}), r"tensor 'x' described by \[1\]"),
    "entry_lacks_shape": (header({"x": {"dtype": "U8", "data_offsets": [0, 0]}}), r"not by dtype, shape and"),
    "entry_has_more": (
        header({"x": entry("U8", [0], 0, 0) | {"crc": 1}}),
        r"not by dtype, shape and data_offsets",
    ),
    "metadata_of_numbers": (
        header({"__metadata__": {"a": 1}}),
        r"__metadata__ that is not a map from strings",
    ),
    "metadata_is_null": (header({"__metadata__": None}), r"__metadata__ that is not a map from strings"),
    "unknown_dtype": (header({"x": entry("F4", [0], 0, 0)}), r"of dtype 'F4', which is none of BOOL, .*BF16"),
    "dtype_is_list": (header({"x": entry([], [0], 0, 0)}), r"of dtype \[\]"),
    "negative_shape": (
        header({"x": entry("U8", [-1, -1], 0, 1)}, b"1"),
        r"of shape \[-1, -1\], which is not a",
    ),
    "fractional_shape": (header({"x": entry("U8", [1.0], 0, 1)}, b"1"), r"of shape \[1.0\]"),
    "boolean_shape": (header({"x": entry("U8", [True], 0, 1)}, b"1"), r"of shape \[True\]"),
    "shape_is_number": (header({"x": entry("U8", 1, 0, 1)}, b"1"), r"of shape 1, which is not a list"),
    "shape_of_2_64": (header({"x": entry("U8", [2**64], 0, 1)}, b"1"), r"of shape \[18446744073709551616\]"),
    "shape_wraps_to_one": (
        header({"x": entry("F32", [2**62, 4], 0, 4)}, b"1234"),
        r"takes 73786976294838206464 by",
    ),
    "huge_beside_zero": (header({"x": entry("F32", [0, 2**62], 0, 0)}), r"too big to address"),
    "rank_65": (header({"x": entry("U8", [1] * 65, 0, 1)}, b"1"), r"up to 64 sizes"),
    "long_shape": (
        header({"x": entry("U8", [2**62] * 10**5, 0, 1)}, b"1"),
        r"of shape \[.{0,200}up to 64 sizes",
    ),
    "three_offsets": (
        header({"x": {**entry("U8", [1], 0, 1), "data_offsets": [0, 1, 1]}}, b"1"),
        r"not two byte",
    ),
    "negative_offset": (header({"x": entry("U8", [1], -1, 0)}, b"1"), r"data_offsets \[-1, 0\]"),
    "reversed_offsets": (
        header({"x": entry("U8", [1], 1, 0)}, b"1"),
        r"takes 1 bytes, but data_offsets .* span -1",
    ),
    "wrong_size": (
        header({"x": entry("F32", [2], 0, 4)}, b"1234"),
        r"takes 8 bytes, but data_offsets \[0, 4\] span 4",
    ),
    "overlap": (
        header({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"123"),
        r"overlap: 'b' begins at byte 1 of the data, but 'a' ends at byte 2",
    ),
    "same_place": (header({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 0, 1)}, b"1"), r"overlap"),
    "hole": (
        header({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"123"),
        r"leave a hole: 'b' begins at byte 2 of the data, but 'a' ends at byte 1",
    ),
    "hole_at_start": (header({"a": entry("U8", [1], 1, 2)}, b"12"), r"leave a hole"),
    "truncated": (
        header({"a": entry("U8", [9], 0, 9)}, b"12345678"),
        r"is truncated: .* take 9 bytes, .* has 8",
    ),
    "left_over": (
        header({"a": entry("U8", [1], 0, 1)}, b"12"),
        r"bytes that belong to no tensor: .* take 1 .* has 2",
    ),
}


@pytest.mark.parametrize(("content", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_invalid_files_are_errors_of_one_sentence(path: Path, content: bytes, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        SafetensorsFile(written(path, content))
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 700 + len(str(path))


def test_header_over_the_limit_is_not_read(path: Path) -> None:
    with open(path, "wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 9)
    with pytest.raises(CheckpointError, match=f"at most {MAX_HEADER_BYTES} are allowed"):
        SafetensorsFile(path)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: None], ids=["directory", "missing"])
def test_unreadable_paths(path: Path, make: Any) -> None:
    make(path)
    with pytest.raises(CheckpointError, match=r"cannot be read: .*Check the path"):
        SafetensorsFile(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_files_are_refused_or_harmless(path: Path, data: st.DataObject) -> None:
    """Any byte changed or any end cut off: an error, or a file that the library reads to the same values."""
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)}
    content = bytearray(safetensors.torch.save(tensors))
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[position] = data.draw(st.integers(0, 255))
    else:
        del content[position:]
    try:
        file = SafetensorsFile(written(path, bytes(content)))
    except CheckpointError as error:
        assert str(path) in str(error)
    else:
        reference = dict(safetensors.deserialize(bytes(content)))
        assert {name: file.array(name).tobytes() for name in file.names} == {
            name: bytes(tensor["data"]) for name, tensor in reference.items()
        }
