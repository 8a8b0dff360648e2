"""Llama as a .gguf file, its queries and keys interleaved by the converter, answers as transformers does."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.end_to_end.gguf_files import interleaved, write_gguf
from tests.qwen2.checkpoints import DEMO, reference_model, write_checkpoint
from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import Split

from aethermind import LLM, Runtime, SamplingParams
from aethermind.checkpoint.gguf_tensors import hf_name
from aethermind.engine.text_pass import text_logits
from aethermind.errors import CheckpointError, ConfigError
from aethermind.ops.weight_format import QuantizedWeight
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.transformers_reference import outputs_of
from aethermind_llama.conformance import CASES
from aethermind_llama.gguf import LLAMA

QUANTISED = ModelCase(
    "quantised",
    "LlamaForCausalLM",
    {**SMALL, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
)
DENSE = [
    case for case in CASES if case.name in ("llama", "llama_tied", "llama_attention_bias", "llama_3_1", "mistral_wide")
]
DEMO_VOCAB_SIZE = json.loads((DEMO / "config.json").read_text())["vocab_size"]
TEXT = np.random.default_rng(4).integers(0, 131, 40).tolist()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModelCase], Path]:
    return cache(lambda case: write_checkpoint(case, tmp_path_factory.mktemp(case.name)))


def distance(path: Path, expected: np.ndarray[Any, Any], runtime: Runtime, device: str) -> float:
    """The largest error of a logit as a fraction of its row's largest."""
    with LLM(path, device=device, dtype="float32", max_num_seqs=64, fallback="allow", runtime=runtime) as llm:
        actual = text_logits(llm.engine, TEXT)
    return float((np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())


@pytest.mark.parametrize("case", DENSE, ids=str)
def test_logits(
    device: str, runtime: Runtime, checkpoint: Callable[[ModelCase], Path], case: ModelCase, tmp_path: Path
) -> None:
    directory = checkpoint(case)
    path = write_gguf(directory, tmp_path / "model.gguf", arch="llama")
    assert distance(path, outputs_of(reference_model(directory), TEXT), runtime, device) < 1e-5


@pytest.mark.parametrize(("type", "tolerance"), [("Q8_0", 1e-5), ("Q4_0", 1e-5), ("Q4_K", 1e-5), ("Q6_K", 3e-2)])
def test_logits_of_quantised_files(
    runtime: Runtime, checkpoint: Callable[[ModelCase], Path], type: str, tolerance: float, tmp_path: Path
) -> None:
    """The gguf library's values of a file without reordered rows, in transformers; then the reordered file."""
    directory = checkpoint(QUANTISED)
    names = [f"blk.{layer}.attn_{letter}.weight" for layer in range(2) for letter in "qk"]
    path = write_gguf(directory, tmp_path / "model.gguf", arch="llama", quantised=dict.fromkeys(names, type))
    model = copy.deepcopy(reference_model(directory))
    weights = dict(model.named_parameters(remove_duplicate=False))
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float64)
        for letter, heads in (("q", 4), ("k", 2)):
            if f"attn_{letter}.weight" in tensor.name:
                order = interleaved(np.arange(len(values)), heads)
                values[order] = values.copy()
        weights[hf_name(tensor.name)].data = torch.from_numpy(values)
    assert distance(path, outputs_of(model, TEXT), runtime, "numpy") < tolerance
    source = runtime.open_source(path).weights()
    assert isinstance(source.array("model.layers.0.self_attn.k_proj.weight"), QuantizedWeight)


def test_text_goes_in_and_comes_out(runtime: Runtime, checkpoint: Callable[[ModelCase], Path], tmp_path: Path) -> None:
    case = ModelCase("wordy", "LlamaForCausalLM", {**SMALL, "vocab_size": DEMO_VOCAB_SIZE})
    more = partial(gguf.GGUFWriter.add_bos_token_id, id=5)
    path = write_gguf(checkpoint(case), tmp_path / "model.gguf", arch="llama", more=more)
    with LLM(path, device="numpy", runtime=runtime) as llm:
        (answer,) = llm.generate(["Once upon"], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    assert answer.prompt_token_ids[0] == 5
    assert answer.outputs[0].text


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("llama-bpe", ["FooBar", " don", "'t", " ", "123", "4", "/\n", " ", " x"]),
        ("falcon3", ["FooBar", " don", "'t", " ", "123", "4", "/\n", " ", " x"]),
        ("smollm", ["FooBar", " don", "'t", " ", "1", "2", "3", "4", "/", "\n ", " x"]),
        ("tekken", ["Foo", "Bar", " don", "'t", " ", "1", "2", "3", "4", "/\n", " ", " x"]),
    ],
)
def test_text_is_split_as_by_the_tokenizers_of_both_families(name: str, pieces: list[str]) -> None:
    """By hand, from what is said of them: digits by three or one, and Tekken's words that end before a capital."""
    rule = Split(Regex(LLAMA.splits[name].pattern), "isolated")
    assert [piece for piece, _ in rule.pre_tokenize_str("FooBar don't 1234/\n  x")] == pieces


@given(st.text(alphabet="aé '\ts1٣½/\n\u00a0\u3000漢", max_size=20))
def test_smollms_pre_tokenizer_runs_in_two_steps(text: str) -> None:
    """SmolLM's tokenizer.json cuts out digits, and then as GPT-2's does; our one expression cuts the same."""
    steps = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    rule = pre_tokenizers.Sequence(
        [
            Split(Regex(LLAMA.splits["smollm"].pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert rule.pre_tokenize_str(text) == steps.pre_tokenize_str(text)


@pytest.mark.parametrize(
    ("key", "value", "error", "says"),
    [
        ("llama.attention.key_length", 24, CheckpointError, "no heads of 24"),
        ("llama.rope.scaling.type", "linear", ConfigError, r"both rope_freqs\.weight and llama\.rope\.scaling\.type"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_in_a_sentence(
    runtime: Runtime,
    checkpoint: Callable[[ModelCase], Path],
    key: str,
    value: Any,
    error: type[Exception],
    says: str,
    tmp_path: Path,
) -> None:
    (case,) = [case for case in DENSE if case.name == "llama_3_1"]

    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        (writer.add_uint32 if isinstance(value, int) else writer.add_string)(key, value)

    source = runtime.open_source(write_gguf(checkpoint(case), tmp_path / "model.gguf", arch="llama", more=change))
    with pytest.raises(error, match=says):
        _ = source.config(), source.weights().array("model.layers.0.self_attn.q_proj.weight")
