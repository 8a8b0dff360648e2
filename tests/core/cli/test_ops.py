"""ops: every operator with its decomposition and kernels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from aethermind import Runtime
from aethermind.cli.ops import coverage, decomposed_operators
from aethermind.dispatch import Kernel
from aethermind.hal.dtype import DType


def test_lists_every_operator_with_its_signature_and_coverage(invoke: Any) -> None:
    result = invoke("ops")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for operator in Runtime.boot().operators:
        position = lines.index(operator.schema.text)
        listed = lines[position + 1 : position + 3]
        assert any("cpu: " in line and "numpy: " in line for line in listed)
    assert "    parts: silu, mul" in lines


def test_the_page_of_one_operator(invoke: Any) -> None:
    result = invoke("ops", "rms_norm")
    assert result.exit_code == 0
    operator = Runtime.boot().operators["rms_norm"]
    assert result.stdout.startswith(operator.schema.text)
    assert operator.summary in result.stdout
    assert "cpu/portable" in result.stdout
    assert "reference" in result.stdout


def test_a_page_merges_kernels_that_differ_in_formats_and_dtypes(invoke: Any) -> None:
    (record,) = json.loads(invoke("ops", "linear", "--json").stdout)["operators"]
    kernels = record["devices"]["cpu"]["kernels"]
    expected = {
        (kernel["name"], kernel["priority"], dtype, format)
        for kernel in kernels
        for dtype in kernel["dtypes"]
        for format in kernel["weight_formats"]
    }
    lines = invoke("ops", "linear").stdout.splitlines()
    first = lines.index("cpu: native") + 1
    listed: list[tuple[str, int, list[str], list[str]]] = []
    for line in lines[first : next(i for i in range(first, len(lines)) if lines[i][0] != " ")]:
        if line.startswith("    "):
            listed[-1][3].extend(line.replace("weights:", "").split())
        else:
            name, dtypes, priority = line.strip().split(", ")
            listed.append((name, int(priority.removeprefix("priority ")), dtypes.split(), []))
    found = {
        (*one, dtype, format) for *one, dtypes, formats in listed for dtype in dtypes for format in formats or ["dense"]
    }
    assert found == expected
    assert len(listed) < len(kernels) / 10


def test_an_unknown_operator_is_a_sentence(invoke: Any) -> None:
    result = invoke("ops", "frobnicate")
    assert result.exit_code == 2
    assert "Unknown operator 'frobnicate'. Known: " in result.stderr


def test_json(invoke: Any) -> None:
    records = json.loads(invoke("ops", "--json").stdout)["operators"]
    by_name = {record["name"]: record for record in records}
    assert set(by_name["silu"]) == {"name", "signature", "summary", "decomposition", "devices"}
    silu, heads, gated = (by_name[name]["devices"] for name in ("silu", "split_heads", "silu_mul"))
    assert silu["cpu"]["coverage"] == "native"
    assert all(kernel["is_native"] for kernel in silu["cpu"]["kernels"])
    assert silu["numpy"]["coverage"] == "reference"
    assert heads["numpy"]["coverage"] == "view"
    assert gated["numpy"] == {"coverage": "parts", "error": None, "kernels": []}
    assert "null" not in silu


def test_kernels_that_cannot_be_loaded_are_listed_with_the_reason(invoke: Any, install_plugin: Any) -> None:
    install_plugin(
        "unlucky",
        """
from aethermind.hal import Probe
from aethermind.plugins import hookimpl
def load():
    raise RuntimeError("no such luck")
@hookimpl
def register_devices(registry):
    registry.register("odd", probe=lambda: Probe(0, "absent"), open=None, priority=1, provider="fake-unlucky")
@hookimpl
def register_kernels(registry):
    registry.register("odd", load, provider="fake-unlucky")
""",
    )
    result = invoke("ops", "silu")
    assert result.exit_code == 0
    assert "no such luck" in result.stdout
    assert "cpu/portable" in result.stdout


def test_the_decomposition_computes_the_same() -> None:
    operators = Runtime.boot().operators
    assert decomposed_operators(operators["silu"], operators) == []
    for operator in operators:
        for part in decomposed_operators(operator, operators):
            assert part in operators
            assert part != operator.name
    assert set(decomposed_operators(operators["silu_mul"], operators)) == {"silu", "mul"}
    assert {"rms_norm", "rope", "kv_cache_write"} <= set(
        decomposed_operators(operators["qkv_rope_cache_write"], operators)
    )


@pytest.mark.parametrize(
    ("own", "expected"),
    [({"native": object()}, "native"), ({"function": np.copyto}, "python"), (None, "none")],
)
def test_coverage_is_that_of_the_preferred_kernel(own: dict[str, Any] | None, expected: str) -> None:
    operators = Runtime.boot().operators
    kernels = [Kernel("add", "odd", "reference", frozenset({DType.FLOAT32}), function=np.copyto)]
    if own is not None:
        kernels += [
            Kernel("silu_mul", "odd", "reference", frozenset({DType.FLOAT32}), function=np.copyto),
            Kernel("silu_mul", "odd", "mine", frozenset({DType.FLOAT32}), 5, **own),
        ]
    assert coverage(operators["silu_mul"], operators, kernels) == expected
    assert coverage(operators["add"], operators, kernels) == "reference"
    kernels += [
        Kernel(name, "odd", "reference", frozenset({DType.FLOAT32}), function=np.copyto) for name in ("silu", "mul")
    ]
    if own is None:
        assert coverage(operators["silu_mul"], operators, kernels) == "parts"
