"""Quantised weights end to end, against transformers with weights that torch code of its own quantised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.qwen2.checkpoints import CASES, reference_model
from tests.qwen2.torch_quantization import dequantized, quantized_model

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.text_pass import text_logits
from aethermind.ops.quantization import fake_quantize
from aethermind.ops.weight_format import FORMAT_NAMES, parse_format
from aethermind.testing.families import ModelCase
from aethermind.testing.families.transformers_reference import outputs_of

CheckpointOf = Callable[[ModelCase], Path]

TEXT = np.random.default_rng(4).integers(0, 131, 24).tolist()
TIED_AND_UNTIED = [family for family in CASES if family.name in ("head_dim_80", "sharded_tied")]


@pytest.mark.parametrize("name", [*FORMAT_NAMES, "int4_channel"])
def test_two_implementations_agree(name: str) -> None:
    format = parse_format(name)
    assert format is not None
    array = (np.random.default_rng(1).standard_normal((6, 200)) * 0.03).astype(np.float32)
    np.testing.assert_array_equal(fake_quantize(format, array), dequantized(name, torch.from_numpy(array)).numpy())


@pytest.mark.parametrize("family", TIED_AND_UNTIED, ids=str)
@pytest.mark.parametrize("quantization", FORMAT_NAMES)
def test_logits_are_those_of_dequantised_weights(
    runtime: Runtime, checkpoint: CheckpointOf, family: ModelCase, quantization: str
) -> None:
    """The head is int8 where the rest has fewer bits, and so are the rows of a table of embeddings tied to it."""
    directory = checkpoint(family)
    head = quantization if quantization.startswith("int8") else "int8"
    expected = outputs_of(quantized_model(reference_model(directory), quantization, head), TEXT)
    with LLM(directory, device="numpy", quantization=quantization, max_num_seqs=32, runtime=runtime) as llm:
        actual = text_logits(llm.engine, TEXT)
        assert llm.info.weight_formats == tuple(dict.fromkeys([quantization, head]))
    error = np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert error.max() < 1e-5


def test_every_device_computes_with_the_same_weights(
    device: str, checkpoint: CheckpointOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the device has no kernel for a format the reference steps in, and says so.

    Kernels for any CPU leave activations as they are; those with byte dot products do not.
    """
    monkeypatch.setenv("AETHERMIND_CPU_ISA", "portable")
    directory = checkpoint(TIED_AND_UNTIED[0])
    expected = outputs_of(quantized_model(reference_model(directory), "int4", "int4_zp"), TEXT)
    options = {"quantization": "int4", "lm_head_quantization": "int4_zp", "fallback": "allow", "max_num_seqs": 32}
    with LLM(directory, device=device, dtype="float32", runtime=Runtime.boot(), **options) as llm:
        actual = text_logits(llm.engine, TEXT)
    assert (np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)).max() < 1e-4


@pytest.mark.parametrize("quantization", ["int8", "int4", "int4_zp", "int2", "int1"])
def test_the_demo_model_writes(device: str, runtime: Runtime, quantization: str) -> None:
    with LLM("demo", device=device, quantization=quantization, fallback="allow", runtime=runtime) as llm:
        (output,) = llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=8))
    assert len(output.outputs[0].token_ids) == 8
    if quantization in ("int8", "int4", "int4_zp"):
        assert output.outputs[0].text.startswith(","), "after “Once upon a time” a story goes on like that"
