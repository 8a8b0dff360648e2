"""Llama and Mistral against transformers: every row of logits, and greedy tokens in ragged batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.qwen2.checkpoints import Family, logits_of, reference_model, write_checkpoint
from tests.qwen2.generation import generate
from tests.qwen2.parity import assert_close_to, assert_matches, random_prompts

from aethermind import LLM, Runtime
from aethermind.errors import ConfigError
from aethermind_llama.architecture import LLAMA

_BANDS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES = (
    Family("llama", "Llama"),
    Family("llama_tied", "Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    Family(
        "llama_3_1",
        "Llama",
        {
            "rope_parameters": {**_BANDS, "rope_theta": 500000.0, "original_max_position_embeddings": 32},
            "head_dim": 64,
        },
    ),
    Family("mistral", "Mistral", {"sliding_window": 7}),
    Family("mistral_wide", "Mistral", {"sliding_window": None, "head_dim": 16}),
)
by_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    made: dict[str, Path] = {}

    def make(family: Family) -> Path:
        if family.name not in made:
            made[family.name] = write_checkpoint(family, tmp_path_factory.mktemp(family.name))
        return made[family.name]

    return make


@by_family
def test_logits_of_every_position(
    device: str, runtime: Runtime, directory: Callable[[Family], Path], family: Family
) -> None:
    (text,) = random_prompts(40)
    with LLM(directory(family), device=device, max_num_batched_tokens=1024, runtime=runtime) as llm:
        generated, _ = generate(llm, [text[:length] for length in range(1, len(text) + 1)], max_tokens=1)
    assert_close_to(logits_of(reference_model(directory(family)), text), [one.logits[0] for one in generated])


@by_family
def test_ragged_batches(device: str, runtime: Runtime, directory: Callable[[Family], Path], family: Family) -> None:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 12, "block_size": 4}
    with LLM(directory(family), device=device, runtime=runtime, **options) as llm:
        generated, _ = generate(llm, random_prompts(1, 41, 5, 23), max_tokens=32, stagger=3)
    for one in generated:
        assert_matches(one, reference_model(directory(family)))


def test_quantised_on_loading(runtime: Runtime, directory: Callable[[Family], Path]) -> None:
    """The kernels that Qwen2 has are this family's too."""
    with LLM(directory(FAMILIES[0]), device="cpu", quantization="int8", runtime=runtime) as llm:
        generated, _ = generate(llm, random_prompts(9), max_tokens=8)
        assert len(generated[0].token_ids) == 8


def test_what_is_not_computed_is_named() -> None:
    with pytest.raises(ConfigError, match="attention_bias is true"):
        LLAMA.create({"attention_bias": True})


def test_mistral_reads_the_window_of_its_older_config(
    runtime: Runtime, directory: Callable[[Family], Path], tmp_path: Path
) -> None:
    """Mistral 7B v0.1 says sliding_window alone, without layer_types."""
    copied = Path(shutil.copytree(directory(FAMILIES[3]), tmp_path / "copied"))
    config = json.loads((copied / "config.json").read_text())
    config.pop("layer_types", None)
    (copied / "config.json").write_text(json.dumps(config))
    with LLM(copied, device="numpy", runtime=runtime) as llm:
        assert llm.engine.planned.model.config.sliding_windows == (7, 7)
