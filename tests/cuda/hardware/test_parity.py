"""Random models in many shapes against transformers: float32 without TF32, sixteen bits by their distance to it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from aethermind import LLM, Runtime

pytest.importorskip("torch", reason="parity is measured against transformers, which needs torch")
pytest.importorskip("transformers", reason="parity is measured against transformers")

from tests.cuda.hardware.references import comparable
from tests.qwen2.sixteen_bits import assert_no_further_from_the_truth

import aethermind_gemma.conformance
import aethermind_glm.conformance
import aethermind_gpt2.conformance
import aethermind_gpt_oss.conformance
import aethermind_llama.conformance
import aethermind_phi.conformance
import aethermind_qwen2.conformance
from aethermind.testing.families import Bench, Checkpoints, ModelCase
from aethermind.testing.families.checks import checks_of

OTHERS = (
    "gemma2",
    "gemma3",
    "gpt_oss",
    "glm4",
    "glm4_moe",
    "mixtral_odd_width_sliding",
    "olmo2",
    "cohere",
    "stablelm",
    "granite",
    "llama_3_1",
    "phi3",
    "phi2",
    "bloom",
    "mpt_six_heads_scaled",
    "gpt_neox",
    "gelu_new",
)
"""One of each family but Qwen's, of which all are tried."""
RECURRENT = "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"


QWEN = [case for case in aethermind_qwen2.conformance.CASES if case.architecture not in RECURRENT]


def others() -> list[ModelCase]:
    """The models that OTHERS names."""
    families = (aethermind_gemma, aethermind_glm, aethermind_gpt2, aethermind_gpt_oss, aethermind_llama, aethermind_phi)
    known = {case.name: case for family in families for case in family.conformance.CASES}
    return comparable(known[name] for name in OTHERS)


pytestmark = pytest.mark.cuda


class CudaBench(Bench):
    """A model whose operators all have kernels of CUDA's."""

    def open(self, **options: Any) -> LLM:
        """Open the model; OperatorError where an operator has none."""
        return super().open(**{"fallback": "error", **options})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Each case's model, written when first asked for."""
    return Checkpoints(tmp_path_factory.mktemp)


@pytest.mark.parametrize("case", [*QWEN, *others()], ids=str)
def test_model_families_pass_the_conformance_kit(runtime: Runtime, checkpoints: Checkpoints, case: ModelCase) -> None:
    bench = CudaBench(case, runtime, "cuda", checkpoints)
    for check in checks_of(case, runtime):
        check(bench)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*product(QWEN, ["bfloat16", "float16"]), *product(others(), ["bfloat16"])],
    ids=str,
)
def test_sixteen_bits_are_no_further_from_the_truth_than_in_transformers(
    runtime: Runtime, checkpoints: Checkpoints, case: ModelCase, dtype: str
) -> None:
    # Tensor cores add up in another order than the CPU does: of a small model that moves the ratio by a few percent.
    assert_no_further_from_the_truth(case, checkpoints.directory(case), dtype, "cuda", runtime, most=1.1)
