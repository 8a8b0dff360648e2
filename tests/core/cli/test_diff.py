"""explain --diff: a wrong kernel is found by name, and agreement lists the compared values."""

from __future__ import annotations

import json
from typing import Any

import pytest

WRONG = """
from aethermind.plugins import hookimpl
from aethermind.hal.device import Probe

class Off:
    '''Right, but for one element in the third of four layers.'''
    def __init__(self, function):
        self.function, self.count = function, 0
    def __call__(self, inputs, outputs, attributes):
        self.function(inputs, outputs, attributes)
        if self.count % 4 == 2:
            outputs[0][-1, 5] {change}
        self.count += 1

def open_backend():
    from aethermind.hal.builtin_backends import NumpyBackend
    backend = NumpyBackend()
    backend.name = 'wrong'
    return backend

def kernels():
    from dataclasses import replace
    from aethermind.dispatch.reference import reference_kernels
    from aethermind.ops.catalog import load
    from aethermind.ops.operator import OperatorRegistry
    found = reference_kernels(OperatorRegistry(load()), 'wrong')
    return [replace(k, name='wrong/silu', function=Off(k.function)) if k.operator == 'silu' else k for k in found]

@hookimpl
def register_devices(registry):
    registry.register('wrong', probe=lambda: Probe(1, 'always'), open=open_backend, provider='fake')

@hookimpl
def register_kernels(registry):
    registry.register('wrong', kernels, provider='fake')
"""
SILU = "model.layers.2.mlp.mlp_swiglu/gate_up_silu/silu"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_kernel_is_found_by_name(invoke: Any, install_plugin: Any, dtype: str) -> None:
    install_plugin("wrong", WRONG.format(change="+= 2"))
    result = invoke("explain", "--diff", "numpy", "wrong", "--dtype", dtype, "--tokens", "2", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["devices"] == ["numpy:0", "wrong:0"]
    first = report["first_divergence"]
    assert (first["name"], first["operator"], first["kernel"]) == (SILU, "silu", "wrong/silu")
    assert (first["scope"], first["layer"], first["step"], first["phase"]) == ("model.layers.2.mlp", 2, 0, "prefill")
    assert first["index"] == [report["prompt_tokens"] - 1, 5]
    assert first["shape"][0] == report["prompt_tokens"]
    assert first["max_abs_error"] == pytest.approx(2, rel=0.02)
    assert first["actual"] - first["expected"] == pytest.approx(2, rel=0.02)
    worst = {one["layer"]: one for one in report["worst_by_layer"]}
    assert worst[0]["excess"] == worst[1]["excess"] == 0
    assert worst[2]["is_diverging"]
    text = invoke("explain", "--diff", "numpy", "wrong", "--dtype", dtype)
    assert text.exit_code == 1
    assert f"First divergence: {SILU}" in text.stdout
    assert "silu (wrong/silu)" in text.stdout


def test_nan_is_text_in_json(invoke: Any, install_plugin: Any) -> None:
    install_plugin("wrong", WRONG.format(change="= float('nan')"))
    result = invoke("explain", "--diff", "numpy", "wrong", "--dtype", "float32", "--json")
    first = json.loads(result.stdout, parse_constant=pytest.fail)["first_divergence"]
    assert (first["name"], first["actual"], first["excess"]) == (SILU, "nan", "inf")
    assert "nan" in invoke("explain", "--diff", "numpy", "wrong", "--dtype", "float32").stdout


def test_agreement_lists_the_compared_values(invoke: Any) -> None:
    result = invoke("explain", "--diff", "numpy", "cpu", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["first_divergence"] is None
    assert report["dtype"] == "bfloat16"
    assert "model.layers.3.mlp.mlp_swiglu/gate_up_silu" in report["compared"]
    assert "model.layers.3.mlp.mlp_swiglu/gate_up_silu/silu" in report["only_in_first"]
    assert report["only_in_second"] == []
    assert report["num_values"] == len(report["compared"])
    inside = json.loads(invoke("explain", "--diff", "numpy", "cpu", "--no-fuse", "--json").stdout)
    assert "model.layers.3.mlp.mlp_swiglu/gate_up_silu/silu" in inside["compared"]
    text = invoke(
        "explain", "--diff", "numpy", "cpu", "--tokens", "2", "--prompt", "The fox", "--dtype", "float32"
    ).stdout
    assert "2 steps" in text
    assert "Nothing diverges" in text
    assert "Worst value of each layer" in text


def test_the_tolerance_can_be_chosen(invoke: Any) -> None:
    result = invoke("explain", "--diff", "numpy", "cpu", "--rtol", "0", "--atol", "0")
    assert result.exit_code == 1
    assert "First divergence" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--diff", "numpy", "abacus"), "abacus"),
        (("--diff", "numpy", "cpu", "--device", "cpu"), "leave --device out"),
        (("--diff", "numpy", "cpu", "--rtol", "nan"), "rtol should be a number from 0"),
        (("--diff", "numpy", "cpu", "--atol", "-1"), "atol should be a number from 0"),
        (("--diff", "numpy", "cpu", "--prompt", ""), "prompt is empty"),
        (("--diff", "numpy", "cpu", "--dtype", "float64"), "float64"),
    ],
)
def test_wrong_values_are_one_line_errors(invoke: Any, args: tuple[str, ...], words: str) -> None:
    result = invoke("explain", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr


def test_diff_needs_two_devices(invoke: Any) -> None:
    result = invoke("explain", "--diff", "numpy")
    assert result.exit_code == 2
    assert "requires 2 arguments" in result.stderr


def test_options_of_diff_are_refused_without_it(invoke: Any) -> None:
    for args in (("--no-fuse",), ("--prompt", "x"), ("--tokens", "2"), ("--rtol", "1"), ("--atol", "1")):
        result = invoke("explain", *args)
        assert result.exit_code == 2
        assert "--diff A B" in result.stderr
