"""Families of each kind of layer on the NPU, compared with transformers by the kit's checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers.utils

from aethermind import Runtime
from aethermind.testing.families import Bench, Checkpoints, cases_of
from aethermind.testing.families.checks import chunks_of_prompts_in_ragged_batches, logits_of_every_position

CASES = {
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "DeepseekV2ForCausalLM": "deepseek_v2_lite",
    "GptOssForCausalLM": "gpt_oss",
    "Mamba2ForCausalLM": "mamba2",
    "Qwen3_5ForCausalLM": "qwen3_5",
}


@pytest.fixture(autouse=True)
def _reference_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch_npu can be imported, transformers imports operators that the reference does not need."""
    for module in (transformers.utils, transformers.utils.import_utils):
        monkeypatch.setattr(module, "is_torch_npu_available", lambda *_, **__: False)


@pytest.mark.parametrize("architecture", CASES)
def test_families_conform(runtime: Runtime, tmp_path: Path, architecture: str) -> None:
    """Prompts of all lengths in one batch; then prefill in chunks with decode steps, of which some are captured."""
    (case,) = (case for case in cases_of(runtime, architecture) if case.name == CASES[architecture])
    bench = Bench(case, runtime, "cann", Checkpoints(lambda name: tmp_path))
    logits_of_every_position(bench)
    chunks_of_prompts_in_ragged_batches(bench)
