"""Random recurrent and hybrid models against transformers: float32, and sixteen bits by their distance to float64."""

from __future__ import annotations

import pytest

from aethermind import Runtime

pytest.importorskip("torch", reason="parity is measured against transformers, which needs torch")
pytest.importorskip("transformers", reason="parity is measured against transformers")

from tests.cuda.hardware.references import comparable
from tests.cuda.hardware.test_parity import CudaBench
from tests.qwen2.sixteen_bits import assert_no_further_from_the_truth

import aethermind_mamba.conformance
import aethermind_qwen2.conformance
from aethermind.testing.families import Checkpoints, ModelCase
from aethermind.testing.families.checks import checks_of

EVERY_FAMILY = "qwen3_next", "qwen3_5", "mamba2", "falcon_h1", "lfm2"
MORE = "qwen3_5_moe", "mamba2_tied_one_group", "falcon_h1_norm_first_biases", "lfm2_biases_untied"
MOST = {"falcon_h1": 1.7}
"""Larger ratios than 1.1: that of Falcon-H1 is 1.56 on CPUs, too."""


def cases(*names: str) -> list[ModelCase]:
    """The models of these names."""
    known = {case.name: case for family in (aethermind_mamba, aethermind_qwen2) for case in family.conformance.CASES}
    return comparable(known[name] for name in names)


pytestmark = pytest.mark.cuda


class RecurrentBench(CudaBench):
    """Delta nets may err three times as much as on a CPU: they carry the rounding of a sum on to later tokens."""

    @property
    def tolerance(self) -> float:
        """The allowed error of logits in float32, as a fraction of a row's largest."""
        return super().tolerance * (3 if "linear_num_value_heads" in self.case.config else 1)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Each case's model, written when first asked for."""
    return Checkpoints(tmp_path_factory.mktemp)


@pytest.mark.parametrize("case", cases(*EVERY_FAMILY, *MORE), ids=str)
def test_recurrent_families_pass_the_conformance_kit(
    runtime: Runtime, checkpoints: Checkpoints, case: ModelCase
) -> None:
    bench = RecurrentBench(case, runtime, "cuda", checkpoints)
    for check in checks_of(case, runtime):
        check(bench)


@pytest.mark.parametrize("case", cases(*EVERY_FAMILY), ids=str)
def test_bfloat16_is_no_further_from_the_truth_than_in_transformers(
    runtime: Runtime, checkpoints: Checkpoints, case: ModelCase
) -> None:
    directory = checkpoints.directory(case)
    assert_no_further_from_the_truth(case, directory, "bfloat16", "cuda", runtime, most=MOST.get(case.name, 1.1))
