"""GGUF files that `aethermind quantize` writes of directories have the weights and the logits of these."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
from tests.qwen2.checkpoints import write_checkpoint
from tests.qwen2.test_quantize import run, written

from aethermind import LLM, Runtime
from aethermind.engine.text_pass import text_logits
from aethermind.testing.families import ModelCase
from aethermind.text.bpe_vocabularies import sentencepiece_bpe
from aethermind.text.tokenizer import Tokenizer

PACKAGES = ("llama", "gemma", "phi", "glm", "qwen2")
CASES = {
    "llama_3_1": "llama",
    "mixtral": "llama",
    "mixtral_tied_one_expert": "llama",
    "olmoe": "olmoe",
    "smollm3": "smollm3",
    "olmo2": "olmo2",
    "ernie4_5": "ernie4_5",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "granite": "granite",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "glm4": "glm4",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
"""Cases of the packages, and the names of their files' architectures."""
PIECES = ("ernie4_5", "gemma2", "gemma3", "mixtral_tied_one_expert", "phi3")
"""Those with SentencePiece's BPE."""
TEXT = np.random.default_rng(4).integers(0, 131, 24).tolist()


def cases() -> dict[str, ModelCase]:
    found = [case for package in PACKAGES for case in import_module(f"aethermind_{package}.conformance").CASES]
    return {case.name: case for case in found if case.name in CASES}


def write_splits(directory: Path, runtime: Runtime, arch: str) -> None:
    """Give the demo's tokenizer the rule of a family."""
    rule = next(iter(runtime.gguf_families.get(arch).splits.values()))
    state = json.loads((directory / "tokenizer.json").read_text())
    patterns = (rule.pattern,) if isinstance(rule.pattern, str) else rule.pattern
    parts = state["pre_tokenizer"]["pretokenizers"]
    splits = [one for one in parts if one["type"] == "Split"]
    others = [one for one in parts if one["type"] != "Split"]
    made = [{**splits[0], "pattern": {"Regex": pattern}} for pattern in patterns]
    state["pre_tokenizer"]["pretokenizers"] = [*made, *others]
    state["normalizer"] = {"type": "NFC"} if rule.is_nfc else None
    state["model"]["ignore_merges"] = rule.ignore_merges
    (directory / "tokenizer.json").write_text(json.dumps(state))


def write_pieces(directory: Path, *, adds_space: bool) -> None:
    """A tokenizer of SentencePiece's kind: bytes, letters, and some merges of these."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    merged = ["th", "he", "the", "▁t", "▁the", "in", "ing", "▁a", "an", "and", "er", "ed"]
    special = ["<unk>", "<s>", "</s>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *merged]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    scores = {piece: -float(rank) for rank, piece in enumerate([*letters, *merged])}
    fast = sentencepiece_bpe(vocabulary, scores, "<unk>", adds_space=adds_space)
    fast.add_special_tokens(special)
    fast.save(str(directory / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))


def prepared(runtime: Runtime, name: str, directory: Path) -> Path:
    """A directory whose weights bfloat16 holds, with a tokenizer that files of the family have."""
    write_checkpoint(cases()[name], directory)
    for file in directory.glob("*.safetensors"):
        tensors = safetensors.torch.load_file(file)
        safetensors.torch.save_file({key: value.bfloat16().float() for key, value in tensors.items()}, file)
    if name in PIECES:
        write_pieces(directory, adds_space=name == "phi3")
    else:
        write_splits(directory, runtime, CASES[name])
    return directory


def logits_of(path: Path, runtime: Runtime) -> np.ndarray[Any, Any]:
    with LLM(path, device="numpy", dtype="float32", max_num_seqs=32, fallback="allow", runtime=runtime) as llm:
        return text_logits(llm.engine, TEXT)


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_directory(runtime: Runtime, name: str, tmp_path: Path) -> None:
    directory, path = prepared(runtime, name, tmp_path / "model"), tmp_path / "model.gguf"
    written("-m", directory, "--to", "bf16", "--out", path, "--quality-tokens", "0")
    np.testing.assert_allclose(logits_of(path, runtime), logits_of(directory, runtime), rtol=2e-4, atol=2e-5)
    reader = gguf.GGUFReader(path)
    arch = CASES[name]
    assert reader.fields["general.architecture"].contents() == arch
    assert_known_names(reader, arch)
    texts = "the singing and the heathens 123 ünï"
    own, found = Tokenizer.from_directory(directory), runtime.open_source(path).tokenizer()
    assert found.encode(texts, add_special_tokens=True) == own.encode(texts, add_special_tokens=True)
    assert found.decode(found.encode(texts)) == own.decode(own.encode(texts))


def assert_known_names(reader: gguf.GGUFReader, arch: str) -> None:
    """Names of tensors and keys are those that the library lists."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[kind]}
    for tensor in reader.tensors:
        parts = tensor.name.rsplit(".", 1)[0].split(".")
        assert ".".join("{bid}" if part.isdigit() else part for part in parts) in known, tensor.name
    groups = [one for one in vars(gguf.Keys).values() if isinstance(one, type)]
    templates = {text for group in groups for text in vars(group).values() if isinstance(text, str)}
    keys = {text.replace("{arch}", arch) for text in templates}
    unknown = [key for key in reader.fields if not key.startswith("GGUF.") and key not in keys]
    assert unknown == []


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("gemma3", {"query_pre_attn_scalar": 99}, "settings that a GGUF file would not have"),
        ("qwen3_moe", {"norm_topk_prob": False, "decoder_sparse_step": 2, "num_hidden_layers": 4}, "GGUF"),
        ("granite", {"attention_bias": True}, ""),
    ],
)
def test_what_a_file_cannot_say_is_refused(
    runtime: Runtime, name: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    case = replace(cases()[name], config={**cases()[name].config, **changes})
    directory = write_checkpoint(case, tmp_path / "model")
    if name in PIECES:
        write_pieces(directory, adds_space=False)
    else:
        write_splits(directory, runtime, CASES[name])
    result = run("-m", directory, "--to", "bf16", "--out", tmp_path / "model.gguf", "--quality-tokens", "0")
    if says:
        assert (result.exit_code, says in result.stderr) == (2, True), result.stderr
        assert not (tmp_path / "model.gguf").exists()
    else:
        assert result.exit_code == 0, result.stderr
    shutil.rmtree(directory)
