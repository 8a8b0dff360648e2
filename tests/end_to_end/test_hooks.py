"""Hooks on a whole model: they see, they change nothing, and what they raise breaks nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aethermind import LLM, SamplingParams
from aethermind.errors import InvalidArgumentError

PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


def answer(llm: LLM, params: SamplingParams = GREEDY) -> list[int]:
    (output,) = llm.generate(PROMPT, params)
    return output.outputs[0].token_ids


@pytest.mark.parametrize("fuse", [True, False])
def test_hooks_see_every_step_and_change_nothing(demo: LLM, fuse: bool) -> None:
    expected = answer(demo)
    logits: list[Any] = []
    phases: list[tuple[str, int, int]] = []

    def see(name: str, array: Any, info: Any) -> None:
        assert name == "lm_head"
        logits.append(array[0].copy())
        phases.append((info.phase, info.step, info.num_tokens))

    with demo.hooks.on("lm_head", see, fuse=fuse):
        assert answer(demo) == expected
    assert [int(row.argmax()) for row in logits] == expected
    num_tokens = len(demo.tokenizer.encode(PROMPT))
    assert [(phase, count) for phase, _, count in phases] == [("prefill", num_tokens)] + [("decode", 1)] * 4
    assert [step - phases[0][1] for _, step, _ in phases] == list(range(5))
    assert answer(demo) == expected
    assert len(logits) == 5


def test_hooks_see_adjusted_steps_too(demo: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, repetition_penalty=1.3, ignore_eos=True)
    seen: list[str] = []
    with demo.hooks.on("sampler.*", lambda name, *_: seen.append(name)):
        answer(demo, params)
    assert "sampler.repetition_penalty" in seen


def test_intermediate_values_are_the_same_on_every_device(open_demo: Callable[..., LLM]) -> None:
    def inside(llm: LLM) -> Any:
        found: list[Any] = []
        with llm.hooks.on("*.2.mlp.*/silu", lambda _, array, info: found.append(array.copy()), fuse=False):
            answer(llm)
        return np.concatenate(found)

    one, other = open_demo(), open_demo(device="numpy")
    np.testing.assert_allclose(inside(one), inside(other), rtol=1e-3, atol=1e-4)


def test_an_exception_of_a_hook_reaches_the_caller_and_later_requests_run(demo: LLM) -> None:
    expected = answer(demo)
    other = demo.stream(PROMPT, GREEDY)
    next(other)

    def fail(name: str, *_: object) -> None:
        raise ZeroDivisionError(name)

    with demo.hooks.on("model.layers.1.*", fail), pytest.raises(ZeroDivisionError, match=r"model\.layers\.1\."):
        demo.generate(["The old fox", "A"], GREEDY)
    assert answer(demo) == expected
    assert [output.outputs[0].token_ids for output in other][-1] == expected


def test_a_wrong_pattern_is_an_error_of_one_sentence(demo: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Did you mean 'model\.layers\.\*\.self_attn"):
        demo.hooks.on("layers.*.attention.*", print)
    assert not demo.hooks.is_active
