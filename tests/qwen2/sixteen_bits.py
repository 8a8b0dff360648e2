"""How far logits in sixteen bits are from the truth: float64 arithmetic on the same rounded weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.qwen2.checkpoints import reference_model

from aethermind import LLM, Runtime
from aethermind.testing.families import ModelCase
from aethermind.testing.families.parity import generate, random_prompts
from aethermind.testing.families.transformers_reference import outputs_of

__all__ = ["assert_no_further_from_the_truth"]


def assert_no_further_from_the_truth(
    case: ModelCase, directory: Path, dtype: str, device: str, runtime: Runtime, *, most: float = 1.0
) -> None:
    """Than `most` times transformers in the same dtype, in root mean squares over all logits of a text's prefixes.

    In a mixture of experts, either may choose another expert than float64 where scores are close, which changes all of
    a row, and all later ones a little. So the median of rows is compared there, which may be a tenth farther, and only
    one of three texts has to be near. A gated delta rule carries the rounding of a token on to all later ones: ratios
    of such models scatter around 0.9, and one may be a fifth farther.
    """
    config = case.config.get("text_config", case.config)
    is_mixture = "num_experts_per_tok" in config
    distance, most = (_median_rms, 1.1 * most) if is_mixture else (_rms, most)
    most = max(most, 1.2) if "linear_num_value_heads" in config else most
    llm = LLM(
        directory,
        device=device,
        dtype=dtype,
        max_model_len=case.max_model_len,
        max_num_batched_tokens=1024,
        runtime=runtime,
    )
    ratio = float("inf")
    for text in random_prompts(*([40, 41, 42] if is_mixture else [40])):
        generated, _ = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
        ours = np.stack([one.logits[0] for one in generated])
        theirs, truth = (
            outputs_of(reference_model(directory, getattr(torch, dtype), computed, case.max_model_len), text)
            for computed in (getattr(torch, dtype), torch.float64)
        )
        ratio = min(ratio, distance(ours - truth) / distance(theirs - truth))
        if ratio <= most:
            break
    print(f"{case} {dtype}: {ratio:.3f} times as far from float64 as transformers")
    assert ratio <= most, f"{ratio:.3f} times as far from float64 as transformers"


def _rms(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _median_rms(values: np.ndarray[Any, Any]) -> float:
    return float(np.median(np.sqrt(np.mean(np.square(values), axis=1))))
