"""Files that may hold anything: what the fuzzer starts from is read, and the same with some of its bytes wrong."""

from __future__ import annotations

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


@pytest.mark.parametrize("target", ["safetensors", "gguf"])
def test_seeds_are_valid(tmp_path: Path, target: str) -> None:
    for path in write_seeds(target, tmp_path):
        assert survives(TARGETS[target], path), path.name


@pytest.mark.parametrize(
    "kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"]
)
def test_a_quantised_tensor_may_have_no_rows(tmp_path: Path, kind: str) -> None:
    """Found by the fuzzer."""
    type = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "empty.gguf", "qwen2")
    writer.add_tensor("w", np.zeros((0, gguf.GGML_QUANT_SIZES[type][1]), np.uint8), raw_dtype=type)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
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
    assert outcomes == {True, False} or target == "gguf_model"
