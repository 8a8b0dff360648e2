"""A family of models against its reference: names of tensors, logits, ragged batches, quantised caches, vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aethermind.errors import InvalidArgumentError
from aethermind.hal import DeviceId
from aethermind.runtime import Runtime
from aethermind.testing.families import Bench, Checkpoints, ModelCase
from aethermind.testing.families.checks import gguf_names
from aethermind.testing.families.parity import reference_of

__all__: list[str] = []


@pytest.fixture
def bench(model_case: ModelCase, runtime: Runtime, device: DeviceId, checkpoints: Checkpoints) -> Bench:
    """The case under test on the device; skipped without a reference."""
    try:
        reference_of(model_case)
    except InvalidArgumentError as error:
        pytest.skip(str(error))
    return Bench(model_case, runtime, str(device), checkpoints)


def test_model(model_check: Callable[[Bench], None], bench: Bench) -> None:
    """One of `aethermind.testing.families.checks` on one model."""
    model_check(bench)


@pytest.mark.optional
def test_gguf_names(general_architecture: str, bench: Bench) -> None:
    """For families whose GGUF files the package reads."""
    pytest.importorskip("gguf", reason="names in GGUF files are compared with those of the gguf library, not installed")
    gguf_names(bench, general_architecture)
