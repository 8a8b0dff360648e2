"""explain: every step is listed, equal layers once, each kernel with its reason."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from aethermind import Runtime
from aethermind.cli.explain import _choice_reason, layer_groups
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model


@pytest.fixture(scope="module")
def compiled(runtime: Runtime) -> CompiledModel:
    return compile_model(runtime, "demo", device="numpy")


def test_layer_groups_contain_every_step_once(compiled: CompiledModel) -> None:
    operators = {operator.name for operator in compiled.operators}
    found = layer_groups(compiled.step, operators)
    assert sum(len(s.steps) * max(len(s.layers), 1) for s in found) == len(compiled.step.plan.steps)
    layers = sorted(layer for section in found for layer in section.layers)
    assert layers == list(range(compiled.model.config.num_hidden_layers))
    assert (found[0].title, found[-1].title) == ("before the layers", "after the layers")
    assert any("×" in section.title for section in found)


def test_paths_lead_from_composite_to_operator(compiled: CompiledModel) -> None:
    operators = {operator.name for operator in compiled.operators}
    lines = {(line.scope, line.path) for section in layer_groups(compiled.step, operators) for line in section.steps}
    assert ("mlp", "mlp_swiglu/gate_up_silu/silu") in lines
    assert ("self_attn", "qkv_rope_cache_write/rope") in lines
    assert ("", "embedding") in lines


def test_json_agrees_with_the_plan(invoke: Any, compiled: CompiledModel) -> None:
    report = json.loads(invoke("explain", "--device", "numpy", "--json").stdout)
    assert report["device"] == "numpy:0"
    assert report["num_steps"] == report["num_native_breaks"] == len(compiled.step.plan.steps)
    assert report["fallbacks"] == []
    assert report["provenance"]["device"] == report["provenance"]["kernels"] == ["aethermind-core"]
    assert [package.split()[0] for package in report["provenance"]["architecture"]] == ["aethermind-qwen2"]
    assert report["memory"]["arena_bytes"] == compiled.step.memory.arena_bytes
    assert report["memory"]["lower_bound_bytes"] <= report["memory"]["arena_bytes"]
    step = report["sections"][0]["steps"][0]
    assert set(step) == {
        "scope",
        "operator",
        "path",
        "kernel",
        "priority",
        "is_native",
        "is_fallback",
        "is_missing",
        "weight_format",
        "rejected",
    }


def test_the_report_as_text(invoke: Any) -> None:
    result = invoke("explain", "--device", "numpy", "--dtype", "float32")
    assert result.exit_code == 0
    for words in ("Qwen2ForCausalLM on numpy:0 (float32)", "after the layers", "→ reference", "Intermediate values"):
        assert words in result.stdout


def test_rejected_kernels_carry_reasons_and_fallbacks_are_named(invoke: Any, install_plugin: Any) -> None:
    """A device that has one kernel, for float64 only: everything else falls back to the reference."""
    install_plugin(
        "halfdone",
        "from aethermind.plugins import hookimpl\n"
        "from aethermind.hal.device import Probe\n"
        "def open_backend():\n"
        "    from aethermind.hal.builtin_backends import NumpyBackend\n"
        "    backend = NumpyBackend()\n"
        "    backend.name = 'halfdone'\n"
        "    return backend\n"
        "@hookimpl\n"
        "def register_devices(registry):\n"
        "    registry.register('halfdone', probe=lambda: Probe(1, 'always'), open=open_backend, provider='fake')\n"
        "@hookimpl\n"
        "def register_kernels(registry):\n"
        "    registry.register('halfdone', kernels, provider='fake')\n"
        "def kernels():\n"
        "    from aethermind.dispatch import Kernel\n"
        "    from aethermind.hal.dtype import DType\n"
        "    return [Kernel('lm_head', 'halfdone', 'fake/lm_head', frozenset({DType.FLOAT64}), function=print)]\n",
    )
    report = json.loads(invoke("explain", "--device", "halfdone", "--json").stdout)
    assert "lm_head" in report["fallbacks"]
    (head,) = [step for section in report["sections"] for step in section["steps"] if step["operator"] == "lm_head"]
    assert head["is_fallback"]
    assert head["rejected"][0]["kernel"] == "fake/lm_head"
    assert "float64" in head["rejected"][0]["reason"]
    text = invoke("explain", "--device", "halfdone").stdout
    assert "fallback; fake/lm_head: computes float64" in text


FAR_DEVICE = """
from aethermind.hal import Probe
from aethermind.plugins import hookimpl

def open_backend():
    from tests.core.graph.remote_backend import RemoteBackend
    backend = RemoteBackend()
    backend.name = "far"
    return backend

@hookimpl
def register_devices(registry):
    registry.register("far", probe=lambda: Probe(1, "always"), open=open_backend, provider="fake-far")

@hookimpl
def register_kernels(registry):
    registry.register("far", kernels, provider="fake-far")

def kernels():
    from aethermind.dispatch import Kernel
    from aethermind.dispatch.reference import reference_kernels
    from aethermind.hal import DType
    from aethermind.ops.catalog import load
    missing = {"rope_table", "lm_head", "silu", "bias_tokens", "mask_tokens"}
    own = [kernel for kernel in reference_kernels(load(), "far") if kernel.operator not in missing]
    return [*own, Kernel("lm_head", "far", "far/lm_head", frozenset({DType.FLOAT64}), function=print)]
"""


def test_all_missing_operators_are_in_the_table(invoke: Any, install_plugin: Any) -> None:
    """On a device whose memory the host cannot reach, where no reference can stand in for them."""
    install_plugin("far", FAR_DEVICE)
    result = invoke("explain", "--device", "far", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (report["missing"], report["fallbacks"]) == (["rope_table", "silu", "lm_head"], [])
    assert report["without_kernel_in_other_steps"] == {
        "penalties, biases and log probabilities": ["bias_tokens"],
        "structured output": ["mask_tokens"],
    }
    steps = [step for section in report["sections"] for step in section["steps"]]
    assert {step["operator"] for step in steps if step["is_missing"]} == set(report["missing"])
    assert all((step["kernel"] is None) == step["is_missing"] for step in steps)
    result = invoke("explain", "--device", "far")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "lm_head  " in line]
    assert line.endswith("→ MISSING    far/lm_head: computes float64, not bfloat16")
    assert "the host cannot reach the device's memory: rope_table, silu, lm_head" in result.stdout
    assert "Without a kernel in steps with structured output: mask_tokens" in result.stdout


def test_generate_names_all_missing_operators(invoke: Any, install_plugin: Any) -> None:
    install_plugin("far", FAR_DEVICE)
    result = invoke("generate", "hi", "--device", "far")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: No kernels for 3 operators on far: rope_table (")


def test_kernels_with_the_same_reason_are_grouped() -> None:
    rejected = [{"kernel": f"k{number}", "reason": "needs head_dim 64"} for number in (1, 2, 2, 3, 4, 5, 6)]
    rejected += [{"kernel": "own", "reason": "computes float32"}, {"kernel": "k7", "reason": "priority 1 < 9"}]
    step = {"kernel": "own", "priority": 9, "is_fallback": False, "is_missing": False, "rejected": rejected}
    why = _choice_reason(step)
    assert why == "not k1, k2, k3 and 3 more: needs head_dim 64; another own: computes float32; priority 9 over k7"


def test_unknown_model_is_a_sentence(invoke: Any) -> None:
    result = invoke("explain", "--model", "nothing-like-it")
    assert result.exit_code == 2
    assert "nothing-like-it" in result.stderr


def test_weight_formats_are_reported(invoke: Any) -> None:
    args = ("explain", "--device", "numpy", "--quantization", "int4_zp")
    report = json.loads(invoke(*args, "--json").stdout)
    assert [(use["name"], use["bits_per_weight"]) for use in report["weight_formats"]] == [
        ("int4_zp", 4.75),
        ("int8", 8.5),
    ]
    steps = {step["operator"]: step for section in report["sections"] for step in section["steps"]}
    found = {name: steps[name]["weight_format"] for name in ("embedding", "linear", "lm_head", "rms_norm")}
    assert found == {"embedding": "int8", "linear": "int4_zp", "lm_head": "int8", "rms_norm": "dense"}
    text = invoke(*args).stdout
    assert "28 matrices in int4_zp: 1.67 MB, 4.75 bits per weight, dequantized to float32; 1 matrix in int8" in text
    assert "lm_head [int8]" in text
    assert "Weights:" not in invoke("explain", "--device", "numpy").stdout


def test_an_unknown_weight_format_is_one_sentence(invoke: Any) -> None:
    result = invoke("explain", "--lm-head-quantization", "int4_zq")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean int4_zp" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_each_reason_is_printed_once_and_equal_names_are_told_apart(invoke: Any) -> None:
    report = json.loads(invoke("explain", "--device", "cpu", "--json").stdout)
    text = invoke("explain", "--device", "cpu").stdout
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if "→" in line]
    assert len(lines) > 20
    reasons = [words[3] for words in lines if len(words) > 3]
    assert len(reasons) == len(set(reasons)) < len(lines)
    for words in lines:
        kernel, rivals = words[2].removeprefix("→ "), re.split(r"; |, | over |not ", " ".join(words[3:]))
        assert kernel not in [rival.partition(":")[0] for rival in rivals]
    assert any(step["rejected"] for section in report["sections"] for step in section["steps"])
