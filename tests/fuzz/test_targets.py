"""Files that may hold anything: what the fuzzer starts from is read, and the same with some of its bytes wrong."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.fuzz.seeds import write_seeds
from tests.fuzz.targets import TARGETS, survives

NUM_MUTANTS = 150
EXTREMES = (0, 1, 127, 128, 255)


@pytest.mark.parametrize("target", ["safetensors", "gguf"])
def test_seeds_are_valid(tmp_path: Path, target: str) -> None:
    for path in write_seeds(target, tmp_path):
        assert survives(TARGETS[target], path), path.name


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
