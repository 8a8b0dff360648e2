"""Weight formats by name: one grammar, sizes to the byte, and errors that name what was meant."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind.errors import InvalidArgumentError, PluginError
from aethermind.ops.weight_format import (
    FORMAT_NAMES,
    QuantizedWeight,
    WeightFormat,
    WeightFormatRegistry,
    parse_format,
)


def format_of(name: str) -> WeightFormat:
    found = parse_format(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "bits", "block", "has_zero_point", "has_offset", "super_block_size"),
    [
        ("int8", 8, 32, False, False, 0),
        ("int8_channel", 8, 0, False, False, 0),
        ("int8_zp_g64", 8, 64, True, False, 0),
        ("int4", 4, 32, False, False, 0),
        ("int4_g128", 4, 128, False, False, 0),
        ("int4_zp", 4, 32, True, False, 0),
        ("int4_zp_g64", 4, 64, True, False, 0),
        ("int4_zp_channel", 4, 0, True, False, 0),
        ("int4_offset", 4, 32, False, True, 0),
        ("int8_offset_g64", 8, 64, False, True, 0),
        ("int4_k", 4, 32, False, True, 256),
        ("int2", 2, 32, True, False, 0),
        ("int2_g1024", 2, 1024, True, False, 0),
        ("int1", 1, 32, False, False, 0),
    ],
)
def test_names_say_what_a_format_is(
    name: str, bits: int, block: int, has_zero_point: bool, has_offset: bool, super_block_size: int
) -> None:
    assert format_of(name) == WeightFormat(name, bits, block, has_zero_point, has_offset, super_block_size)


@pytest.mark.parametrize(
    "name",
    ["", "dense", "int3", "int16", "INT4", "int4_", "int4_g", "int4_g0", "int4_g48", "int4_g2048", "int4_g064",
     "int4_g64_zp", "int4_channel_g64", "int2_zp", "int1_zp", "int2_offset", "int4_zp_offset", " int4", "int4 ",
     "int4_k_g64", "int8_k"],
)  # fmt: skip
def test_other_names_are_none(name: str) -> None:
    assert parse_format(name) is None


def test_two_spellings_are_one_format() -> None:
    assert format_of("int4_zp_g32") == format_of("int4_zp")


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_proposed_names_are_formats_under_their_own_names(name: str) -> None:
    assert format_of(name).name == name


@pytest.mark.parametrize(
    ("name", "shape", "nbytes"),
    [
        ("int8", (3, 64), 3 * (64 + 2 * 2)),
        ("int8", (1, 33), 33 + 2 * 2),
        ("int8_channel", (5, 100), 5 * (100 + 2)),
        ("int4", (2, 32), 2 * (16 + 2)),
        ("int4", (1, 1), 1 + 2),
        ("int4_zp_g128", (1, 256), 128 + 2 * 3),
        ("int4_offset", (2, 32), 2 * (16 + 4)),
        ("int4_k", (3, 512), 3 * 2 * 144),
        ("int4_k", (1, 896), 448 + 28 * 12 // 8 + 4 * 4),
        ("int4_k", (2, 1), 2 * (1 + 2 + 4)),
        ("int2", (1, 32), 8 + 3),
        ("int1", (4, 64), 4 * (8 + 2 * 2)),
        ("int4", (0, 64), 0),
        ("int8_channel", (4, 0), 0),
    ],
)
def test_bytes(name: str, shape: tuple[int, int], nbytes: int) -> None:
    assert format_of(name).nbytes(shape) == nbytes


def test_bits_per_weight_count_scales_and_zero_points() -> None:
    bits = {
        name: format_of(name).bits_per_weight((7, 1024)) for name in ("int8", "int4", "int4_zp_g128", "int2", "int1")
    }
    assert bits == {"int8": 8.5, "int4": 4.5, "int4_zp_g128": 4 + 24 / 128, "int2": 2.75, "int1": 1.5}
    assert format_of("int4").bits_per_weight((0, 32)) == 0


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("int8", {"codes": np.zeros((2, 40), np.uint8)}, r"codes .* int8 should be int8\[2, 40\], got uint8\[2, 40\]"),
        ("int8", {"scales": np.zeros((2, 1), np.float16)}, r"scales .* float16\[2, 2\], got float16\[2, 1\]"),
        ("int8", {"scales": np.zeros((2, 2), np.float32)}, "got float32"),
        ("int4_zp", {"codes": np.zeros((2, 40), np.uint8)}, "zeros .* got none"),
        ("int4_k", {"codes": np.zeros((2, 40), np.uint8)}, r"scales .* int4_k should be uint8\[2, 2\], got float16"),
        (
            "int4_k",
            {name: np.zeros((2, 40 if name == "codes" else 2), np.uint8) for name in ("codes", "scales", "offsets")},
            r"super_block_scales .* float16\[2, 1, 2\], got none",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, changed: dict[str, np.ndarray], words: str) -> None:
    parts = {"codes": np.zeros((2, 40), np.int8), "scales": np.zeros((2, 2), np.float16), **changed}
    with pytest.raises(InvalidArgumentError, match=words):
        QuantizedWeight(format_of(name), **parts)


@pytest.fixture
def registry() -> WeightFormatRegistry:
    registry = WeightFormatRegistry()
    registry.register(parse_format, names=FORMAT_NAMES, provider="core")
    return registry


def test_a_registry_finds_what_the_grammar_has(registry: WeightFormatRegistry) -> None:
    assert registry.get("int4_zp_g256") == format_of("int4_zp_g256")
    assert registry.get("dense") is None
    assert registry.names() == list(FORMAT_NAMES)


@pytest.mark.parametrize(
    ("name", "meant"), [("int3", "int8"), ("int4_gp", "int4_g64"), ("int8_chanel", "int8_channel")]
)
def test_an_unknown_name_is_told_with_what_may_be_meant(registry: WeightFormatRegistry, name: str, meant: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match=rf"Unknown weight format '{name}'\. Did you mean .*{meant}.*Known: int8, "
    ) as error:
        registry.get(name)
    assert str(error.value).endswith("dense.")


def test_nothing_near_is_no_hint(registry: WeightFormatRegistry) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'xyz'\. Known: "):
        registry.get("xyz")


def test_plugins_add_formats_but_take_none(registry: WeightFormatRegistry) -> None:
    ours = WeightFormat("nf4", 4, 64, has_zero_point=False)
    registry.register({"nf4": ours}.get, names=["nf4"], provider="fake")
    assert registry.get("nf4") is ours
    assert registry.names()[-1] == "nf4"
    for taken in ("int4", "nf4", "int8_g64", "dense"):
        with pytest.raises(PluginError, match=taken):
            registry.register(lambda _: ours, names=[taken], provider="thief")
    registry.freeze()
    with pytest.raises(AssertionError):
        registry.register(lambda _: None, names=[], provider="late")
