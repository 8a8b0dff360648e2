"""A fake model, and plugins that fail in different ways, installed for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import typer.testing
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind.cli.app import app
from aethermind.llm import CompletionOutput, ModelInfo, RequestOutput, SamplingParams
from aethermind.plugins import API_VERSION

Invoke = Callable[..., typer.testing.Result]


@pytest.fixture
def invoke() -> Invoke:
    """`invoke("generate", "hi")` runs the command line in this process."""
    runner = typer.testing.CliRunner()
    return lambda *args, **options: runner.invoke(app, args, **options)


INFO = ModelInfo(
    model="a/model",
    architecture="FakeForCausalLM",
    device="fake:0",
    device_reason="it was asked for",
    dtype="float32",
    num_threads=1,
    max_model_len=64,
    num_kv_blocks=4,
    block_size=16,
    num_parameters=10,
    weight_bytes=40,
    kv_cache_bytes=0,
    arena_bytes=0,
    load_s=0.25,
    placement="everywhere",
    num_native_breaks=0,
)


def request_output(
    text: str, token_ids: list[int], *, finish_reason: str | None = None, request_id: str = "0", now: float = 0.0
) -> RequestOutput:
    """An answer to a prompt of two tokens that came at 10 s; its first token came at 10.5 s, the last `now` later."""
    from aethermind.engine.requests.output import RequestMetrics

    completion = CompletionOutput(0, text, token_ids, None, finish_reason, None)
    metrics = RequestMetrics(10.0, 10.5, 10.5 + now if finish_reason else None)
    return RequestOutput(request_id, "hi", [7, 8], [completion], finish_reason is not None, metrics)


class FakeLLM:
    """Answers with the given growing texts, a token each and 0.1 s apart; an exception among them is raised there."""

    info = INFO
    sampling_defaults: Mapping[str, Any] = MappingProxyType({})
    last_reason = "stop"

    def __init__(self, *texts: str | BaseException) -> None:
        self.texts = texts
        self.prompts: list[Any] = []
        self.params: list[SamplingParams] = []
        self.options: dict[str, Any] = {}
        self.adapter: str | None = None
        self.tokenizer = SimpleNamespace(
            chat_template="a template", chat_templates={"default": "a template"}, special_tokens={}
        )
        self.is_closed = False
        self.is_stream_closed = False

    def stream(self, prompt: Any, params: SamplingParams, *, adapter: str) -> Iterator[RequestOutput]:
        self.adapter = adapter
        self.prompts.append(prompt)
        self.params.append(params)
        try:
            for i, text in enumerate(self.texts):
                if isinstance(text, BaseException):
                    raise text
                reason = self.last_reason if i == len(self.texts) - 1 else None
                yield request_output(text, list(range(i + 1)), finish_reason=reason, now=0.1 * i)
        finally:
            self.is_stream_closed = True

    def stream_chat(
        self, messages: Any, params: SamplingParams, *, memory: Any, adapter: str, chat_template: str | None
    ) -> Iterator[RequestOutput]:
        self.chat_template, self.memory = chat_template, memory
        return self.stream(messages, params, adapter=adapter)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLLM]:
    """`fake_llm("a", "ab")` is the model that commands open from then on."""

    def install(*texts: str | BaseException) -> FakeLLM:
        llm = FakeLLM(*texts)

        def open_fake(model: str, **options: Any) -> FakeLLM:
            llm.options = {"model": model, **options}
            return llm

        monkeypatch.setattr("aethermind.llm.LLM", open_fake)
        return llm

    return install


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`install_plugin("name", source)` puts a distribution `fake-name 9.9` with one entry point on sys.path."""
    fakes = FakeDistributions(tmp_path, monkeypatch)

    def install(name: str, source: str, api_version: int = API_VERSION) -> None:
        fakes.install(name, source, api_versions=(api_version,))

    return install


@pytest.fixture
def broken_plugins(install_plugin: Callable[..., None]) -> dict[str, str]:
    """Five plugins that fail, with words that occur in the error of each."""
    hook = "from aethermind.plugins import hookimpl\n@hookimpl\n"
    claim = "registry.register('numpy', probe=None, open=None, provider='fake-thief')"
    install_plugin("raises", "raise RuntimeError('no such luck')")
    install_plugin("exits", "import sys\nsys.exit(3)")
    install_plugin("future", "", api_version=99)
    install_plugin("thief", f"{hook}def register_devices(registry):\n    {claim}\n")
    install_plugin("mute", hook + "def register_commands(app):\n    raise KeyError('verb')\n")
    return {
        "raises": "no such luck",
        "exits": "SystemExit",
        "future": "plugin API 99",
        "thief": "claimed by both aethermind-core and fake-thief",
        "mute": "register_commands raised KeyError",
    }
