"""Hooks: patterns choose values, any backend hands over the same ones, removal and errors leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.core.graph.graphs import COMPOSITES, given_values, model_builder, reference_values
from tests.core.graph.remote_backend import RemoteBackend
from tests.core.graph.test_executor import MODEL_GREATEST, MODEL_SYMBOLS, Run

from aethermind.errors import InvalidArgumentError
from aethermind.graph.hooks import HookRegistry, ValueInfo
from aethermind.hal import Backend
from aethermind.hal.builtin_backends import NumpyBackend

SYMBOLS = tuple(MODEL_SYMBOLS.values())


class Model:
    """A small model with a registry, as a runner has it."""

    def __init__(self, backend: Backend | None = None, fused: Sequence[str] = COMPOSITES) -> None:
        builder = model_builder()
        self.values = given_values(builder, MODEL_SYMBOLS)
        self.runs = {
            fuse: Run(builder, MODEL_GREATEST, self.values, backend, fused=fused, fuse=fuse) for fuse in (True, False)
        }
        self.hooks = HookRegistry(self.names)

    def names(self, fuse: bool) -> list[str]:
        return [name for step in self.runs[fuse].compiled.plan.steps for name in step.names]

    def step(self) -> None:
        run = self.runs[self.hooks.fuse]
        run.fill_inputs()
        self.hooks.run(run.executor, SYMBOLS, "prefill", MODEL_SYMBOLS["T"])


@pytest.fixture
def model() -> Model:
    return Model()


class Seen(dict[str, tuple[Any, ValueInfo]]):
    """A hook that keeps what it gets."""

    def __call__(self, name: str, array: Any, info: ValueInfo) -> None:
        self[name] = (array.copy(), info)


@pytest.mark.parametrize("backend", [NumpyBackend, RemoteBackend])
def test_a_pattern_chooses_values_and_they_are_the_references(backend: type[Backend]) -> None:
    model, seen = Model(backend()), Seen()
    model.hooks.on("model.layers.1.*norm*", seen)
    model.step()
    assert list(seen) == [name for name in model.names(True) if name.startswith("model.layers.1.") and "norm" in name]
    expected = reference_values(model.runs[True].compiled.graph, model.values)
    for name, (array, _) in seen.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_a_hook_is_told_where_a_value_comes_from(model: Model) -> None:
    seen = Seen()
    model.hooks.on("*", seen)
    model.step()
    model.step()
    info = seen["model.layers.1.self_attn.paged_attention"][1]
    assert (info.operator, info.layer, info.phase) == ("paged_attention", 1, "prefill")
    assert (info.step, info.num_tokens, info.is_state) == (1, MODEL_SYMBOLS["T"], False)
    assert seen["embedding"][1].layer is None
    assert [name for name, (_, info) in seen.items() if info.is_state] == [
        f"model.layers.{layer}.self_attn.qkv_rope_cache_write.{side}_out" for layer in (0, 1) for side in "kv"
    ]


def test_without_fusion_the_inside_of_operators_is_seen(model: Model) -> None:
    inside = "model.layers.0.mlp.mlp_swiglu/gate_up_silu/silu"
    with pytest.raises(InvalidArgumentError, match="pass fuse=False"):
        model.hooks.on(inside, print)
    seen = Seen()
    handle = model.hooks.on(inside, seen, fuse=False)
    assert not model.hooks.fuse
    model.step()
    assert list(seen) == [inside]
    handle.remove()
    assert model.hooks.fuse


def test_hooks_end_when_they_are_removed(model: Model) -> None:
    first, second = Seen(), Seen()
    handle = model.hooks.on("embedding", first)
    with model.hooks.on("embedding", second):
        model.step()
    assert model.hooks.is_active
    handle.remove()
    handle.remove()
    assert not model.hooks.is_active
    assert list(first) == list(second) == ["embedding"]


def test_what_a_hook_raises_reaches_the_caller(model: Model) -> None:
    def fail(name: str, *_: object) -> None:
        raise KeyError(name)

    with model.hooks.on("embedding", fail), pytest.raises(KeyError, match="embedding"):
        model.step()
    seen = Seen()
    model.hooks.on("lm_head", seen)
    model.step()
    assert list(seen) == ["lm_head"]


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("model.layers.*.self_atn.paged_attention", "model.layers.*.self_attn.paged_attention"),
        ("model.layers.7.self_attn.linear", "model.layers.*.self_attn.linear"),
        ("lmhead", "lm_head"),
        ("", "rope_table"),
    ],
)
def test_a_pattern_that_fits_nothing_is_a_sentence_with_near_names(model: Model, pattern: str, near: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        model.hooks.on(pattern, print)
    assert str(caught.value).startswith(f"No value matches {pattern!r}. Did you mean ")
    assert repr(near) in str(caught.value)
    assert not model.hooks.is_active


def test_what_hooks_see_cannot_be_written(model: Model) -> None:
    def write(_: str, array: Any, __: ValueInfo) -> None:
        array[...] = 0

    with model.hooks.on("*", write), pytest.raises(ValueError, match="read-only"):
        model.step()


def test_a_hook_is_a_pattern_and_a_function(model: Model) -> None:
    for pattern, hook in ((3, print), (None, print), ("*", "print")):
        with pytest.raises(InvalidArgumentError, match="a pattern and a function"):
            model.hooks.on(pattern, hook)  # type: ignore[arg-type]
    assert not model.hooks.is_active
