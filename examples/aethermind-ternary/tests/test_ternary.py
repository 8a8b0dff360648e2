"""The format fulfils its contract, and a model in it agrees with an unquantised one whose weights are rounded to the
same values.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind_ternary.format import TERNARY

RUNTIME = Runtime.boot()
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Once upon a time", "The little fox"]
RNG = np.random.default_rng(3)


def test_codes_are_ternary_with_a_scale_per_row_and_survive_requantisation() -> None:
    weight = TERNARY.quantize(RNG.standard_normal((7, 33)).astype(np.float32))
    assert set(np.unique(weight.codes)) == {-1, 0, 1}
    assert weight.scales.shape == (7, 1)
    again = TERNARY.quantize(weight.format.dequantize(weight) * np.float32(3))
    np.testing.assert_array_equal(again.codes, weight.codes)


def test_rows_do_not_depend_on_each_other() -> None:
    array = RNG.standard_normal((6, 21)).astype(np.float32)
    whole, alone = TERNARY.quantize(array), TERNARY.quantize(array[2:3])
    np.testing.assert_array_equal(whole.rows(2, 3).codes, alone.codes)
    np.testing.assert_array_equal(whole.rows(2, 3).scales, alone.scales)


def test_a_row_of_zeros_is_preserved() -> None:
    assert not TERNARY.dequantize(TERNARY.quantize(np.zeros((2, 8), np.float32))).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_values_beyond_its_range_are_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be ternary"):
        TERNARY.quantize(np.full((1, 3), value, np.float32))


def test_its_size_is_as_declared() -> None:
    assert TERNARY.bits_per_weight((512, 1000)) == pytest.approx(1.6, abs=0.02)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with the values that its matrices have in the format."""
    folder = tmp_path_factory.mktemp("rounded")
    demo = RUNTIME.models.locate("demo")
    for path in demo.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, folder)
    weights = load_file(demo / "model.safetensors")
    rounded = {name: tensor.float().numpy() for name, tensor in weights.items()}
    for name, array in rounded.items():
        if array.ndim == 2 and "embed" not in name and "lm_head" not in name:
            rounded[name] = TERNARY.dequantize(TERNARY.quantize(array))
    save_file(rounded, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_a_model_agrees_with_its_rounded_weights(rounded: Path, device: str) -> None:
    """`numpy` has ternary kernels; `cpu` has none and computes with the weights dequantised to float32."""
    answers = []
    for model, options in (("demo", {"quantization": "ternary", "lm_head_quantization": "dense"}), (rounded, {})):
        options |= {"dtype": "float32", "max_model_len": 64, "fallback": "allow"}
        with LLM(model, device=device, runtime=RUNTIME, **options) as llm:
            answers.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)])
    assert answers[0] == answers[1]


def test_its_kernels_are_selected() -> None:
    options = ("--device", "numpy", "--quantization", "ternary", "--json")
    command = [sys.executable, "-m", "aethermind", "explain", *options]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    steps = [step for section in found["sections"] for step in section["steps"]]
    assert {step["kernel"] for step in steps if step["weight_format"] == "ternary"} == {"ternary linear"}


def test_a_similar_name_gets_a_suggestion() -> None:
    with pytest.raises(AetherMindError, match="Did you mean ternary"):
        LLM("demo", device="numpy", quantization="ternery", runtime=RUNTIME)
