"""Random models in many shapes against transformers: float32 without TF32, sixteen bits by their distance to it."""

from __future__ import annotations

import pytest

from aethermind import Runtime

pytest.importorskip("torch", reason="parity is measured against transformers, which needs torch")
pytest.importorskip("transformers", reason="parity is measured against transformers")

from tests.qwen2.checkpoints import CASES
from tests.qwen2.sixteen_bits import assert_no_further_from_the_truth

from aethermind.testing.families import Bench, Checkpoints, ModelCase
from aethermind.testing.families.checks import checks_of

pytestmark = [pytest.mark.cuda, pytest.mark.parametrize("case", CASES, ids=str)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Each case's model, written when first asked for."""
    return Checkpoints(tmp_path_factory.mktemp)


def test_model_families_pass_the_conformance_kit(runtime: Runtime, checkpoints: Checkpoints, case: ModelCase) -> None:
    bench = Bench(case, runtime, "cuda", checkpoints)
    for check in checks_of(case, runtime):
        check(bench)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_no_further_from_the_truth_than_in_transformers(
    runtime: Runtime, checkpoints: Checkpoints, case: ModelCase, dtype: str
) -> None:
    # Tensor cores add up in another order than the CPU does: of a small model that moves the ratio by a few percent.
    assert_no_further_from_the_truth(case, checkpoints.directory(case), dtype, "cuda", runtime, most=1.1)
