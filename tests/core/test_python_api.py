"""What a notebook shows: names, signatures, documentation, short tracebacks, a progress bar of text."""

from __future__ import annotations

import inspect
import io
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

import aethermind
from aethermind import LLM, AetherMindError, EngineOptions, RequestOptions, Runtime, SamplingParams
from aethermind.engine.config import EngineConfig
from aethermind.python_api import ProgressBar


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="numpy", max_model_len=64) as llm:
        yield llm


def test_names_complete_before_they_are_imported() -> None:
    offered = dir(aethermind)
    assert set(aethermind.__all__) <= set(offered)
    assert [name for name in offered if name.startswith("L")] == ["LLM", "Logprob"]
    assert not {"annotations", "Any", "TYPE_CHECKING"} & set(offered)
    assert all(getattr(aethermind, name) is not None for name in offered)


def test_every_option_is_in_the_signature_with_its_default() -> None:
    parameters = inspect.signature(LLM).parameters
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for option in fields(EngineConfig):
        assert parameters[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[option.name].default == option.default
    assert "add_generation_prompt" in inspect.signature(LLM.chat).parameters
    assert "tools" in inspect.signature(LLM.stream_chat).parameters


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        (LLM.__init__, EngineOptions.__annotations__),
        (EngineOptions, EngineOptions.__annotations__),
        (SamplingParams, inspect.signature(SamplingParams).parameters),
        (RequestOptions, inspect.signature(RequestOptions).parameters),
        (LLM.chat, ("chat_template", "add_generation_prompt", "tools", "chat_template_kwargs")),
    ],
    ids=["LLM", "EngineOptions", "SamplingParams", "RequestOptions", "chat"],
)
def test_help_says_what_each_option_means(shown: Any, names: Any) -> None:
    text = inspect.getdoc(shown) or ""
    lines = {line.split()[0].rstrip(":"): line for line in text.splitlines() if line.startswith("    ")}
    assert set(names) <= lines.keys()
    for name in names:
        assert len(lines[name].partition(": ")[2].split()) >= 2, lines[name]


def test_objects_say_what_they_are(llm: LLM) -> None:
    assert repr(llm) == (
        "<LLM demo: Qwen2ForCausalLM, 3 M parameters in bfloat16 on numpy:0, contexts of up to 64 tokens>"
    )
    assert repr(llm.tokenizer) == f"<Tokenizer of {llm.tokenizer.vocab_size:,} tokens, chat templates default>"
    assert repr(llm.engine) == "<Engine of Qwen2ForCausalLM on numpy:0: 0 requests run, 0 wait>"
    assert repr(LLM.__new__(LLM)) == "<LLM that was not loaded>", "a debugger may look at it while it is made"
    assert llm.get_tokenizer() is llm.tokenizer
    assert re.fullmatch(r"<Runtime with devices .*numpy.*; architectures .*Qwen2ForCausalLM.*>", repr(Runtime.boot()))


def raised_by(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


MISTAKES = [
    lambda llm: LLM("no-such-model"),
    lambda llm: LLM("demo", device="numpy", max_model_len=-1),
    lambda llm: SamplingParams(temperature=-3),
    lambda llm: llm.generate("x" * 9000),
    lambda llm: llm.generate(["a"], [SamplingParams(), SamplingParams()]),
    lambda llm: list(llm.stream("x" * 9000)),
    lambda llm: llm.chat("hello"),
    lambda llm: list(llm.stream_chat([])),
    lambda llm: llm.embed("x" * 9000),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_traceback_ends_in_the_caller_s_line(llm: LLM, mistake: Callable[[LLM], Any]) -> None:
    error = raised_by(lambda: mistake(llm))
    assert isinstance(error, AetherMindError)
    assert [frame.filename for frame in traceback.extract_tb(error.__traceback__)] == [__file__] * 3
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert "--" not in str(error)


def test_for_debugging_it_is_whole(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="aethermind")
    error = raised_by(lambda: llm.generate("x" * 9000))
    assert len(traceback.extract_tb(error.__traceback__)) > 4


def test_bugs_keep_their_traceback(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.engine, "add_request", lambda *_, **__: 1 / 0)
    error = raised_by(lambda: llm.generate("Once"))
    assert isinstance(error, ZeroDivisionError)
    assert len(traceback.extract_tb(error.__traceback__)) > 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: SamplingParams(temprature=3), "SamplingParams() has no argument 'temprature'; did you mean temp"),
        (lambda llm: llm.generate("a", sampling_param=1), "LLM.generate() has no argument 'sampling_param'; did you"),
        (lambda llm: LLM("demo", max_modle_len=3), "no option 'max_modle_len'; did you mean max_model_len?"),
        (lambda llm: LLM("demo", trust_remote_code=True), "code that comes with a model is never run"),
        (lambda llm: LLM("demo", n_ctx=64), "give max_model_len"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(llm: LLM, call: Callable[[LLM], Any], words: str) -> None:
    assert words in str(raised_by(lambda: call(llm)))


def test_a_type_error_from_inside_is_left_alone(llm: LLM) -> None:
    def broken(_: Any) -> None:
        broken.missing()  # type: ignore[attr-defined]

    error = raised_by(lambda: llm.generate("Once", SamplingParams(max_tokens=1), on_output=broken))
    assert isinstance(error, AttributeError)


class NotebookStream(io.StringIO):
    """What ipykernel puts in the place of stderr."""


NotebookStream.__module__ = "ipykernel.iostream"


def test_a_notebook_needs_no_widgets_for_progress(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = NotebookStream()
    monkeypatch.setattr(sys, "stderr", stream)
    llm.generate(["Once", "Upon"], SamplingParams(max_tokens=1), use_tqdm=True)
    drawn = stream.getvalue().split("\r")
    assert [line.rpartition("] ")[2] for line in drawn[1:]] == ["0 of 2", "1 of 2", "2 of 2\n"]
    assert drawn[2].count("#") == 20


def test_without_prompts_the_bar_is_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = NotebookStream()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(0, True):
        pass
    assert stream.getvalue().endswith("0 of 0\n")
