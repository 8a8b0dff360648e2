"""Gemma's configuration in all spellings, the decoder of models with images, and K-shift by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from aethermind import LLM
from aethermind.cache.spec import KVCacheSpec
from aethermind.engine.loading.model_graph import GraphKey, GraphKind, StepGraphs
from aethermind.engine.text_pass import text_logits
from aethermind.errors import ConfigError
from aethermind.hal import DType
from aethermind.model import Paged, Window
from aethermind.model.rope import FREQUENCIES, RopeConfig, inverse_frequencies
from aethermind.runtime import Runtime
from aethermind.testing.families.parity import assert_close_to, random_prompts, write_numeric_tokenizer
from aethermind_gemma.architecture import GEMMA2, GEMMA3, GEMMA3_WITH_IMAGES, Gemma

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
}


@pytest.mark.parametrize(
    ("architecture", "theirs"), [(GEMMA2, transformers.Gemma2Config()), (GEMMA3, transformers.Gemma3TextConfig())]
)
def test_an_empty_config_means_what_transformers_takes_it_for(architecture: Any, theirs: Any) -> None:
    model: Gemma = architecture.create({})
    config = model.config
    for name in ("hidden_size", "num_hidden_layers", "head_dim", "vocab_size", "max_position_embeddings"):
        assert getattr(config, name) == getattr(theirs, name), name
    assert [theirs.sliding_window if kind == "sliding_attention" else 0 for kind in theirs.layer_types] == list(
        config.sliding_windows
    )
    assert model.variant.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert (model.variant.attention_softcap or None, model.variant.logits_softcap or None) == (
        theirs.attn_logit_softcapping,
        theirs.final_logit_softcapping,
    )


def ropes_of(model: Gemma) -> list[RopeConfig | None]:
    return [model.config.rope_of(layer) for layer in range(model.config.num_hidden_layers)]


def test_both_spellings_of_rotary_embeddings_mean_the_same() -> None:
    scaled = {"rope_type": "linear", "factor": 8.0}
    older = {**SIZES, "rope_theta": 1e6, "rope_scaling": scaled, "rope_local_base_freq": 5000.0}
    nested = {
        "full_attention": {**scaled, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    model = GEMMA3.create(older)
    assert ropes_of(model) == ropes_of(GEMMA3.create({**SIZES, "rope_parameters": nested}))
    assert [rope and rope.theta for rope in ropes_of(model)] == [5000.0] * 5 + [1e6, 5000.0]
    assert [rope and rope.factor for rope in ropes_of(model)] == [1.0] * 5 + [8.0, 1.0]


def test_layers_with_a_window_declare_it() -> None:
    layout = GEMMA2.create({**SIZES, "num_hidden_layers": 2}).cache_layout()
    assert layout == (Window(2, 16, 16, 8), Paged(2, 16, 16))


@pytest.mark.parametrize("field", ["use_bidirectional_attention", "attention_bias"])
def test_what_is_not_computed_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        GEMMA3.create({**SIZES, field: True})


def test_files_without_the_factor_of_scores_take_that_of_the_size() -> None:
    file = {**SIZES, "norm_weight_offset": 0.0, "query_pre_attn_scalar": None}
    assert GEMMA3.create(file).variant.attention_scale == 16**-0.5
    largest = {**file, "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32, "head_dim": 128}
    assert GEMMA3.create(largest).variant.attention_scale == 168**-0.5


def test_keys_shift_by_the_frequencies_of_their_layer() -> None:
    model = GEMMA3.create(SIZES)
    spec = KVCacheSpec(model.cache_layout(), "float32", 4)
    graphs = StepGraphs(model, Runtime.boot().operators, spec, 3, 64, DType.FLOAT32)
    builder = graphs.build(GraphKey(kind=GraphKind.KEY_SHIFT))
    nodes = builder.finish().nodes
    tables = {node.outputs[0]: node.inputs[1] for node in nodes if node.operator == "rope_table"}
    of_layers = [builder.constants[tables[node.inputs[3]].name] for node in nodes if node.operator == "shift_keys"]
    for rope, frequencies in zip(ropes_of(model), of_layers, strict=True):
        assert rope is not None
        np.testing.assert_array_equal(frequencies, inverse_frequencies(rope, 64)[0])
    assert sorted(builder.constants) == [FREQUENCIES, f"{FREQUENCIES}.1"]


def test_the_decoder_of_a_model_with_pictures_reads_text(tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=SIZES, vision_config=vision, mm_tokens_per_image=4, image_token_id=130
    )
    torch.manual_seed(0)
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    write_numeric_tokenizer(tmp_path)
    (text,) = random_prompts(30, vocab_size=128)
    with torch.no_grad():
        expected = theirs.double()(torch.tensor([text])).logits[0].numpy()
    with LLM(str(tmp_path), device="numpy", dtype="float32", max_model_len=64, max_num_seqs=32) as llm:
        assert_close_to(expected, list(text_logits(llm.engine, text)), 2e-5)
    assert GEMMA3_WITH_IMAGES.create({"text_config": SIZES}).config.num_hidden_layers == 7
