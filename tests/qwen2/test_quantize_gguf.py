"""`aethermind quantize` to GGUF, read by the gguf library and computed by transformers with its values."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
from tests.qwen2.checkpoints import CASES, qwen2, reference_outputs
from tests.qwen2.test_quantize import run, written

from aethermind import LLM, Runtime
from aethermind.cli.bench.quality import compare_logits
from aethermind.engine.text_pass import text_logits
from aethermind.testing.families import ModelCase
from aethermind.text.split_patterns import GPT_4
from aethermind.text.tokenizer import Tokenizer

CheckpointOf = Callable[[ModelCase], Path]

SIZES = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 2048, "num_hidden_layers": 2}
CASE = qwen2("gguf_written", **SIZES)
TIED = qwen2("gguf_written_tied", **SIZES, tie_word_embeddings=True)
QWEN3 = ModelCase("gguf_written_qwen3", "Qwen3ForCausalLM", {**CASE.config, "head_dim": 32})
NARROW = qwen2("gguf_written_narrow", **{**SIZES, "hidden_size": 96, "num_attention_heads": 4})
TOKENS = np.random.default_rng(6).integers(0, 2000, 30).tolist()


def logits_of(path: Path, runtime: Runtime) -> np.ndarray[Any, Any]:
    with LLM(path, device="numpy", dtype="float32", max_num_seqs=32, fallback="allow", runtime=runtime) as llm:
        return text_logits(llm.engine, TOKENS)


def to(format: str, out: Path, *args: str | Path) -> dict[str, Any]:
    return written("--to", format, "--out", out, "--quality-tokens", "0", *args)


@pytest.mark.parametrize(
    ("case", "format", "types", "loss"),
    [
        (CASE, "f16", {"attn_q": "F16", "output": "F16", "token_embd": "F16"}, 1e-6),
        (CASE, "q8_0", {"attn_q": "Q8_0", "output": "Q8_0", "token_embd": "Q8_0"}, 1e-3),
        (TIED, "q4_k_m", {"attn_q": "Q4_K", "attn_v": "Q4_K", "token_embd": "Q6_K"}, 0.1),
        (QWEN3, "q5_k_m", {"attn_q": "Q5_K", "ffn_up": "Q5_K", "output": "Q6_K", "token_embd": "Q5_K"}, 0.04),
        (QWEN3, "q6_k", {"attn_q": "Q6_K", "ffn_down": "Q6_K"}, 0.01),
        (NARROW, "q4_k_m", {"attn_q": "Q5_0", "ffn_down": "Q4_K", "output": "Q8_0"}, 0.05),
    ],
    ids=lambda value: getattr(value, "name", value) if not isinstance(value, dict | float) else "",
)
def test_a_directory_becomes_a_file(
    checkpoint: CheckpointOf, tmp_path: Path, runtime: Runtime, case: ModelCase, format: str, types: Any, loss: float
) -> None:
    source, out = checkpoint(case), tmp_path / "model.gguf"
    record = to(format, out, "-m", source)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    for module, type in types.items():
        name = f"{module}.weight" if module in ("output", "token_embd") else f"blk.0.{module}.weight"
        assert tensors[name].tensor_type.name == type
    assert all(tensor.tensor_type.name == "F32" for name, tensor in tensors.items() if "norm" in name or "bias" in name)
    assert ("output.weight" in tensors) != (case is TIED)
    original = safetensors.torch.load_file(source / "model.safetensors")
    for theirs, own in (
        ("blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"),
        ("token_embd.weight", "model.embed_tokens.weight"),
    ):
        values = gguf.dequantize(tensors[theirs].data, tensors[theirs].tensor_type)
        weight = original[own].float().numpy()
        assert np.linalg.norm(values - weight) < 0.1 * np.linalg.norm(weight)
    assert compare_logits(reference_outputs(source)(TOKENS), logits_of(out, runtime)).kl_mean < loss
    assert record["nbytes"] == sum(int(tensor.n_bytes) for tensor in tensors.values())
    theirs_, own_ = runtime.open_source(out).tokenizer(), Tokenizer.from_directory(source)
    text = "The keeper's 142 steps,\n\tand a beam  every eleven seconds. ünï 日本"
    assert theirs_.encode(text) == own_.encode(text)
    assert (theirs_.chat_template, theirs_.eos_token_id) == (own_.chat_template, own_.eos_token_id)


def test_llamas_rows_are_interleaved_and_its_rotation_is_scaled(
    checkpoint: CheckpointOf, tmp_path: Path, runtime: Runtime
) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "rope_theta": 500000.0, "original_max_position_embeddings": 32}  # fmt: skip
    case = ModelCase("gguf_written_llama", "LlamaForCausalLM", {**CASE.config, "head_dim": 64, "rope_parameters": rope})
    source = tmp_path / "llama"
    shutil.copytree(checkpoint(case), source)
    state = json.loads((source / "tokenizer.json").read_text())
    state["normalizer"] = None
    state["model"]["ignore_merges"] = True
    (split,) = (one for one in state["pre_tokenizer"]["pretokenizers"] if one["type"] == "Split")
    split["pattern"] = {"Regex": GPT_4}
    (source / "tokenizer.json").write_text(json.dumps(state))
    to("f16", tmp_path / "llama.gguf", "-m", source)
    assert compare_logits(reference_outputs(source)(TOKENS), logits_of(tmp_path / "llama.gguf", runtime)).kl_mean < 1e-5
    assert "rope_freqs.weight" in {tensor.name for tensor in gguf.GGUFReader(tmp_path / "llama.gguf").tensors}


def test_a_file_becomes_another_with_the_same_metadata(checkpoint: CheckpointOf, tmp_path: Path) -> None:
    first, second, text = tmp_path / "f16.gguf", tmp_path / "q4.gguf", tmp_path / "text.txt"
    text.write_text("Once upon a time there was a lighthouse, and its keeper counted the ships. " * 4)
    to("f16", first, "-m", checkpoint(CASE))
    record = written("-m", first, "--to", "q4_0", "--out", second, "--imatrix", text, "--quality-tokens", "40")
    assert 0 < record["quality"]["kl_mean"] < 0.1
    before, after = gguf.GGUFReader(first), gguf.GGUFReader(second)
    own = {"general.file_type", "quantize.imatrix.entries_count"}
    for key in before.fields.keys() | after.fields.keys():
        if key not in own and not key.startswith("GGUF."):
            assert before.fields[key].contents() == after.fields[key].contents()
            assert before.fields[key].types == after.fields[key].types
    assert [tensor.name for tensor in before.tensors] == [tensor.name for tensor in after.tensors]
    assert {tensor.tensor_type.name for tensor in after.tensors} == {"F32", "Q4_0", "Q6_K"}


@pytest.mark.parametrize(
    ("case", "args", "words"),
    [
        (CASE, ("--to", "q8_0", "--out", "{tmp}/folder"), "should end with .gguf"),
        (next(case for case in CASES if case.name == "qwen3_next"),
         ("--to", "q8_0", "--out", "{tmp}/x.gguf"), "of Qwen3NextForCausalLM are not written as GGUF; those of Cohere"),
        (qwen2("gguf_windows", **SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1),
         ("--to", "q8_0", "--out", "{tmp}/x.gguf"), "settings that a GGUF file would not have"),
    ],
    ids=lambda value: value.name if isinstance(value, ModelCase) else "",
)  # fmt: skip
def test_what_cannot_be_written_is_refused(
    checkpoint: CheckpointOf, tmp_path: Path, case: ModelCase, args: tuple[str, ...], words: str
) -> None:
    result = run("-m", checkpoint(case), *(arg.replace("{tmp}", str(tmp_path)) for arg in args))
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_is_not_made_of_a_file(checkpoint: CheckpointOf, tmp_path: Path) -> None:
    to("q8_0", tmp_path / "x.gguf", "-m", checkpoint(CASE))
    result = run("-m", tmp_path / "x.gguf", "--to", "fp8", "--out", tmp_path / "folder")
    assert (result.exit_code, "is GGUF, which has no Hugging Face configuration" in result.stderr) == (2, True)


def test_without_the_library_its_extra_is_named(
    checkpoint: CheckpointOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    result = run("-m", checkpoint(CASE), "--to", "q8_0", "--out", tmp_path / "x.gguf")
    assert (result.exit_code, "aethermind-core[gguf]" in result.stderr) == (2, True)
