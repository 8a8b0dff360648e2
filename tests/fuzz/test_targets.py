"""Files that may hold anything: what the fuzzer starts from is read, and the same with some of its bytes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest
from tests.fuzz.seeds import write_seeds
from tests.fuzz.targets import TARGETS, survives
from tests.scale import scaled

from aethermind import Runtime
from aethermind.errors import CheckpointError

NUM_MUTANTS = scaled(15_000)
EXTREMES = (0, 1, 127, 128, 255)


@pytest.mark.parametrize("target", ["safetensors", "gguf", "quantised", "tiktoken"])
def test_seeds_are_valid(tmp_path: Path, target: str) -> None:
    for path in write_seeds(target, tmp_path):
        assert survives(TARGETS[target], path), path.name


@pytest.mark.parametrize(
    "kind",
    [
        "Q8_0",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q2_K",
        "Q3_K",
        "IQ4_NL",
        "IQ4_XS",
        "IQ2_XXS",
        "IQ2_S",
        "IQ1_S",
        "TQ1_0",
        "Q1_0",
        "NVFP4",
    ],
)
def test_a_quantised_tensor_may_have_no_rows(tmp_path: Path, kind: str) -> None:
    """Found by the fuzzer."""
    type = gguf.GGMLQuantizationType[kind]
    with _gguf_file(tmp_path / "empty.gguf", "qwen2") as writer:
        writer.add_tensor("w", np.zeros((0, gguf.GGML_QUANT_SIZES[type][1]), np.uint8), raw_dtype=type)
    assert survives(TARGETS["gguf"], tmp_path / "empty.gguf")


def test_a_vocabulary_without_a_model_is_refused_as_one(tmp_path: Path) -> None:
    """Found by the fuzzer; llama.cpp ships such files for tests of tokenizers."""
    source = Runtime.boot().open_source(write_seeds("gguf_model", tmp_path)[1])
    with pytest.raises(CheckpointError, match="has no tensors: it is a vocabulary without a model"):
        source.config()


@pytest.mark.parametrize("target", TARGETS)
def test_files_with_wrong_bytes_are_read_or_refused_in_a_sentence(tmp_path: Path, target: str) -> None:
    rng = Random(0)
    outcomes = set()
    for path in write_seeds(target, tmp_path):
        data = path.read_bytes()
        mutant = tmp_path / f"mutant{path.suffix}"
        for _ in range(NUM_MUTANTS):
            changed = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                changed[rng.randrange(len(data))] = rng.choice((*EXTREMES, rng.randrange(256)))
            mutant.unlink(missing_ok=True)  # one that is mapped must not change
            mutant.write_bytes(changed[: rng.choice((len(data), len(data), rng.randrange(len(data))))])
            outcomes.add(survives(TARGETS[target], mutant))
    assert outcomes == {True, False} or target in ("gguf_model", "tiktoken")


def test_metadata_of_every_architecture_may_have_any_type_and_size(tmp_path: Path) -> None:
    rng = Random(0)
    runtime = Runtime.boot()
    families = {name: runtime.gguf_families.get(name) for name in runtime.gguf_families.names()}
    assert len(families) >= 30
    for name, family in families.items():
        keys = {**_SIZES, **dict.fromkeys(family.metadata.values(), 8)}
        transformed = () if callable(family.transforms) else family.transforms
        modules = {*_MODULES, *family.modules, *family.interleaved, *family.present.values(), *transformed}
        tensors = {module if module.endswith((".weight", ".bias")) else f"{module}.weight" for module in modules}
        for _ in range(scaled(1000)):
            values = {key: rng.choice(_ANYTHING) if rng.random() < 0.1 else value for key, value in keys.items()}
            path = tmp_path / "some.gguf"
            path.unlink(missing_ok=True)
            with _gguf_file(path, name) as writer:
                for key, value in values.items():
                    _add(writer, f"{name}.{key}", value)
                writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
                shape = rng.choice(_SHAPES)
                for tensor in sorted(tensors):
                    writer.add_tensor(f"blk.0.{tensor}", np.zeros(shape, np.float32))
            survives(TARGETS["gguf_model"], path)


_SIZES = {
    "block_count": 1,
    "embedding_length": 32,
    "feed_forward_length": 32,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "context_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e4,
    "rope.scale_linear": 1.0,
    "expert_count": 0,
    "nextn_predict_layers": 0,
}
_MODULES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_exps")
_ANYTHING = (
    "x",
    -1,
    0,
    2**40,
    7,
    0.0,
    1.5,
    float("nan"),
    float("inf"),
    True,
    [1],
    [1, 2, 3],
    [-1, 0],
    [1.5],
    ["a", "b"],
)
_SHAPES = ((32, 32), (32,), (1,), (3, 5), (0, 4), (2, 3, 5), (64, 1, 4))


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    kinds = {bool: "bool", int: "int64", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(key, value)


@contextmanager
def _gguf_file(path: Path, architecture: str) -> Iterator[gguf.GGUFWriter]:
    writer = gguf.GGUFWriter(path, architecture)
    yield writer
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
