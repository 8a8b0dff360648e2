"""Random recurrent and hybrid models against transformers: float32, and sixteen bits by their distance to float64."""

from __future__ import annotations

import pytest

from aethermind import Runtime

pytest.importorskip("torch", reason="parity is measured against transformers, which needs torch")
pytest.importorskip("transformers", reason="parity is measured against transformers")

from tests.qwen2.sixteen_bits import assert_no_further_from_the_truth

from aethermind.testing.families import Bench, Checkpoints, ModelCase
from aethermind.testing.families.checks import checks_of
from aethermind_mamba.conformance import CASES

pytestmark = [pytest.mark.cuda, pytest.mark.parametrize("case", CASES, ids=str)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Each case's model, written when first asked for."""
    return Checkpoints(tmp_path_factory.mktemp)


def test_parity_of_recurrent_families(runtime: Runtime, checkpoints: Checkpoints, case: ModelCase) -> None:
    bench = Bench(case, runtime, "cuda", checkpoints)
    for check in checks_of(case, runtime):
        check(bench)


def test_parity_of_recurrent_families_in_bfloat16(runtime: Runtime, checkpoints: Checkpoints, case: ModelCase) -> None:
    """States and their sums are float32 here, while transformers rounds to bfloat16 between its operators."""
    directory = checkpoints.directory(case)
    assert_no_further_from_the_truth(case, directory, "bfloat16", "cuda", runtime, most=1.2)
