"""The block size of the KV cache is one that the device's kernels take."""

from __future__ import annotations

from typing import Any

import pytest

from aethermind import Runtime
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.errors import InvalidArgumentError
from aethermind.hal.backend import Capabilities
from aethermind.hal.dtype import DType


def compiled_with(runtime: Runtime, model: str = "demo", options: Any = (), **declared: Any) -> CompiledModel:
    """A model on the reference device, whose backend declares more capabilities."""
    opened = runtime.open_device("numpy")
    opened.backend.capabilities = Capabilities((DType.FLOAT32,), is_host_accessible=True, **declared)
    return compile_model(runtime, model, opened=opened, **{"dtype": "float32", "max_model_len": 96, **dict(options)})


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, 16),
        ({"preferred_block_size": 128}, 128),
        ({"block_sizes": (16, 64)}, 16),
        ({"block_sizes": (64, 128, 32)}, 128),
        ({"block_sizes": (64, 128), "preferred_block_size": 64}, 64),
    ],
    ids=str,
)
def test_the_device_chooses_where_the_user_does_not(runtime: Runtime, declared: Any, expected: int) -> None:
    compiled = compiled_with(runtime, **declared)
    assert compiled.cache_spec.block_size == expected
    shapes = {type.shape for name, type in compiled.step.plan.states.items() if name.startswith("k_cache")}
    assert {shape[2] for shape in shapes} == {expected}


def test_a_block_size_of_the_user_is_one_that_the_device_takes(runtime: Runtime) -> None:
    assert compiled_with(runtime, options={"block_size": 3}).cache_spec.block_size == 3
    assert compiled_with(runtime, options={"block_size": 32}, block_sizes=(16, 32)).cache_spec.block_size == 32
    with pytest.raises(InvalidArgumentError, match=r"numpy take KV blocks of 16, 32 tokens, not of 8\. Pass one") as e:
        compiled_with(runtime, options={"block_size": 8}, block_sizes=(16, 32))
    assert e.value.param == "block_size"


@pytest.mark.parametrize(("layout", "size"), [("cell", 1), ("static", 96)])
def test_layouts_need_their_block_size(runtime: Runtime, layout: str, size: int) -> None:
    options = {"kv_cache_layout": layout}
    assert compiled_with(runtime, options=options, block_sizes=(1, 96)).cache_spec.block_size == size
    with pytest.raises(InvalidArgumentError, match=f"not of {size}: pass paged as kv_cache_layout"):
        compiled_with(runtime, options=options, block_sizes=(16,))
