"""The demo model on every device, shared by the tests of this folder; each test has to leave it as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aethermind import LLM, Runtime


@pytest.fixture(scope="session")
def open_demo(device: str, runtime: Runtime) -> Callable[..., LLM]:
    """Load the demo model in float32 with a short context, or with other options, on the device under test."""

    def load(**options: Any) -> LLM:
        return LLM(**{"device": device, "dtype": "float32", "max_model_len": 128, "runtime": runtime, **options})

    return load


@pytest.fixture(scope="session")
def shared_demo(open_demo: Callable[..., LLM]) -> LLM:
    return open_demo()


@pytest.fixture
def demo(shared_demo: LLM) -> Iterator[LLM]:
    """The demo model, idle before and after."""
    yield shared_demo
    assert_idle(shared_demo)


def assert_idle(llm: LLM) -> None:
    """No request is left, and no block is in use."""
    assert not llm.engine.has_unfinished
    assert llm.engine.cache.num_available_blocks == llm.engine.compiled.num_kv_blocks
