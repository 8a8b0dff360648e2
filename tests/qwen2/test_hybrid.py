"""Qwen3-Next and Qwen3.5: which layers have a state, what is refused, and the decoder of models that read images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from aethermind import LLM
from aethermind.engine.text_pass import text_logits
from aethermind.errors import ConfigError
from aethermind.model import Paged, Recurrent
from aethermind.testing.families.parity import assert_close_to, random_prompts, write_numeric_tokenizer
from aethermind_qwen2.hybrid import QWEN3_5, QWEN3_5_WITH_IMAGES, QWEN3_NEXT

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 8,
}


@pytest.mark.parametrize("architecture", [QWEN3_5, QWEN3_NEXT])
def test_every_fourth_layer_has_attention(architecture: Any) -> None:
    state = Recurrent((("conv_state", (3, 2 * 2 * 32 + 4 * 8)), ("recurrent_state", (4, 32, 8))))
    assert architecture.create(SIZES).cache_layout() == (state, state, state, Paged(2, 16, 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types in config.json should list"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads .3. in config.json is not a multiple"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QWEN3_5.create({**SIZES, **change})


def test_the_decoder_of_a_model_with_pictures_reads_text(tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    config = transformers.Qwen3_5Config(text_config={**SIZES, "rope_parameters": rope}, vision_config=vision)
    torch.manual_seed(0)
    theirs = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    write_numeric_tokenizer(tmp_path)
    (text,) = random_prompts(30, vocab_size=128)
    with torch.no_grad():
        expected = theirs.double()(torch.tensor([text])).logits[0].numpy()
    with LLM(str(tmp_path), device="numpy", dtype="float32", max_model_len=64, max_num_seqs=32) as llm:
        assert_close_to(expected, list(text_logits(llm.engine, text)), 2e-5)
    with pytest.raises(ConfigError, match="no text_config"):
        QWEN3_5_WITH_IMAGES.create(SIZES)
