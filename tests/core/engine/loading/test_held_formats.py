"""Weights with two levels of scales: devices without kernels for them hold one level, with the same codes."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from aethermind.dispatch import Dispatcher, Kernel
from aethermind.engine.loading.weight_formats import formats_on_device
from aethermind.graph.constants import _pack_input
from aethermind.hal import DType
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, fp8_in_blocks, parse_format


def format_of(name: str) -> WeightFormat:
    found = parse_format(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("of_kernel", "held"),
    [(frozenset({"int4_offset", "dense"}), "int4_offset"), (frozenset({"int4_k"}), "int4_k"), (None, "int4_k")],
)
def test_a_device_without_kernels_for_two_levels_holds_one(of_kernel: frozenset[str] | None, held: str) -> None:
    kernel = Kernel("linear", "fake", "fake", frozenset({DType.FLOAT32}), function=print, weight_formats=of_kernel)
    stored = {"k": format_of("int4_k"), "offset": format_of("int4_offset"), "int8": format_of("int8")}
    found = formats_on_device(stored, Dispatcher([kernel]))
    assert {name: format.name for name, format in found.items()} == {"k": held, "offset": "int4_offset", "int8": "int8"}


@pytest.mark.parametrize(
    ("of_kernel", "held", "says"), [("fp8", "fp8", "scale for each row"), ("dense", "int8", "held as int8")]
)
def test_fp8_in_blocks_is_held_in_a_format_of_the_device(
    of_kernel: str, held: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    formats = frozenset({of_kernel})
    kernel = Kernel("linear", "fake", "fake", frozenset({DType.FLOAT32}), function=print, weight_formats=formats)
    with caplog.at_level(logging.WARNING, "aethermind"):
        found = formats_on_device({"w": fp8_in_blocks(128)}, Dispatcher([kernel]))
    assert found["w"].name == held
    assert says in caplog.text


def test_codes_are_unchanged() -> None:
    array = np.random.default_rng(0).standard_normal((3, 300)).astype(np.float32)
    weight = format_of("int4_k").quantize(array)
    assert _pack_input(weight, DType.FLOAT32, weight.format) is weight
    taken = _pack_input(weight, DType.FLOAT32, format_of("int4_offset"))
    assert isinstance(taken, QuantizedWeight)
    assert taken.format == format_of("int4_offset")
    np.testing.assert_array_equal(taken.codes, weight.codes)
    values = _pack_input(weight, DType.FLOAT32, format_of("int8"))
    np.testing.assert_array_equal(values, weight.format.dequantize(weight))
