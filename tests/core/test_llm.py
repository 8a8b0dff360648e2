"""The offline API takes an engine's options by name."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import aethermind
from aethermind import LLM, EngineOptions, RequestOptions, Runtime, SamplingParams
from aethermind.engine.config import EngineConfig
from aethermind.errors import InvalidArgumentError
from aethermind.plugins import DeprecatedUseWarning


def test_the_documented_options_are_those_that_are_checked() -> None:
    written = {
        "memory": str | None,
        "tokenizer": str | None,
        "draft_model": str | None,
        "adapters": Mapping[str, str] | None,
    }
    hints = get_type_hints(EngineOptions)
    assert hints.pop("lm_head") == hints["lm_head_quantization"]
    assert hints | written == get_type_hints(EngineConfig)


def test_the_deprecated_name_of_an_option_has_the_same_meaning() -> None:
    with pytest.warns(
        DeprecatedUseWarning, match="the option lm_head is removed in version .*; use lm_head_quantization"
    ) as seen:
        config = EngineConfig.of(lm_head="int8")
    assert config == EngineConfig(lm_head_quantization="int8")
    assert [one.filename for one in seen] == [__file__]
    with pytest.raises(InvalidArgumentError, match="lm_head_quantization and lm_head are the same option"):
        EngineConfig.of(lm_head="int8", lm_head_quantization="int8")


def test_paths_may_be_given_where_names_may() -> None:
    given = EngineConfig.of(tokenizer=Path("a/b"), speculative_method="draft", draft_model=Path("c"))
    assert given == EngineConfig(tokenizer="a/b", speculative_method="draft", draft_model="c")
    assert EngineConfig.of() == EngineConfig()


@pytest.mark.parametrize("name", [one.name for one in fields(EngineConfig)])
def test_a_bad_value_of_an_option_is_an_error_with_its_name(name: str) -> None:
    default = getattr(EngineConfig(), name)
    for value in (object(), [], float("nan"), *(() if default is None else (None,))):
        with pytest.raises(InvalidArgumentError, match=rf"^{name} should be .+, got .+\.$"):
            EngineConfig(**{name: value})


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="no option 'max_seq_len'; did you mean max_model_len"):
        LLM("demo", max_seq_len=128)  # type: ignore[call-arg]


def test_the_package_exports_what_it_names() -> None:
    for name in aethermind.__all__:
        assert getattr(aethermind, name) is not None


def test_an_interrupt_while_prompts_are_read_leaves_no_request_open(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM("demo", device="null", runtime=runtime) as llm:
        read, num_read = llm.engine.prompts.read, itertools.count()

        def interrupted(prompt: Any) -> Any:
            if next(num_read) == 2:
                raise KeyboardInterrupt
            return read(prompt)

        monkeypatch.setattr(llm.engine.prompts, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["one", "two", "three"], SamplingParams(max_tokens=2))
        assert not llm.engine.has_unfinished


def test_a_logits_processor_that_cannot_be_created_leaves_no_request_open(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM("demo", device="null", runtime=runtime) as llm:
        engine, num_made = llm.engine, itertools.count()

        def processors(_: SamplingParams) -> tuple[()]:
            if next(num_made) == 2:
                raise RuntimeError("a plugin's own")
            return ()

        monkeypatch.setattr(engine._constraints_builder, "processors", processors)
        biased = SamplingParams(max_tokens=2, n=3, logit_bias={5: 1.0})
        with pytest.raises(RuntimeError, match="a plugin's own"):
            engine.add_request("a", [5, 6, 7], biased)
        engine.add_request("a", [5, 6, 7], biased)
        assert engine.abort("a") is not None
        assert not engine.has_unfinished


def test_a_step_looks_only_at_requests_with_new_output(runtime: Runtime) -> None:
    class Counted(set[str]):
        num_looks = 0

        def __contains__(self, name: object) -> bool:
            self.num_looks += 1
            return super().__contains__(name)

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("every step would look at every request that waits")

    with LLM("demo", device="null", runtime=runtime, max_num_seqs=2) as llm:
        params = [SamplingParams(max_tokens=5, ignore_eos=True)] * 20
        ids = Counted(llm._add_all([{"prompt_token_ids": [5, 6]}] * 20, params, [RequestOptions()] * 20))
        (first, second), num_steps = llm._next_outputs(ids, True), 5
        assert (first.finished, second.finished) == (True, True)
        assert ids.num_looks <= 2 * num_steps
        llm._abort_open(list(map(str, range(20))))


def test_generate_and_a_stream_can_be_open_at_once(runtime: Runtime) -> None:
    with LLM("demo", device="null", runtime=runtime) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        outputs = llm.stream({"prompt_token_ids": [5, 6]}, params)
        assert len(next(outputs).outputs[0].token_ids) == 1
        (whole,) = llm.generate({"prompt_token_ids": [5, 6]}, params)
        assert whole.finished
        assert [one.finished for one in outputs][-1]


def test_threads_may_share_a_model_and_its_steps() -> None:
    """Each gets what it would get alone, though they add requests, step and give up answers in each other's midst."""
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [f"Once upon a time there was a {animal}" for animal in ("fox", "hen", "frog", "mole")]
    with LLM("demo", dtype="float32") as llm:
        alone = [output.outputs[0].text for output in llm.generate(prompts, params)]
        num_blocks, num_steps, advance = llm.engine.cache.num_available_blocks, itertools.count(), llm.engine.advance

        def counted() -> Any:
            next(num_steps)
            return advance()

        llm.engine.advance = counted  # type: ignore[method-assign]
        start = threading.Barrier(len(prompts))

        def ask(index: int) -> list[str]:
            start.wait()
            texts = []
            for _ in range(2):
                stream = llm.stream(prompts[index - 1], params)
                next(stream)
                stream.close()
                texts.append(llm.generate(prompts[index], params)[0].outputs[0].text)
                llm.embed(prompts[index])
            return texts

        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(ask, range(len(prompts))))
        assert answers == [[text] * 2 for text in alone]
        assert next(num_steps) < 2 * len(prompts) * params.max_tokens, "steps are shared"
        assert not llm.engine.has_unfinished
        assert llm.engine.cache.num_available_blocks == num_blocks
