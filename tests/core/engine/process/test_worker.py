"""The loop of an engine's process, message by message, with an engine in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.core.engine.engines import open_engine

from aethermind import Runtime, SamplingParams, StructuredOutputs
from aethermind.engine.process.protocol import Abort, Add, EngineOutputs, Forget, Unpacker
from aethermind.engine.process.worker import Outbox, _Worker
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.errors import InvalidArgumentError

PLAIN = SamplingParams(max_tokens=3, ignore_eos=True)


class Rig:
    """A worker whose grammars are compiled when `may_compile` is set."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = open_engine(runtime, "null")
        self._sock, far = socket.socketpair()
        self.worker = _Worker(self.engine, cast(Any, None), Outbox(far))
        self._unpacker = Unpacker()
        self.may_compile = threading.Event()
        grammars = self.engine._constraints_builder._grammars
        compile = grammars._compile

        def compile_late(wanted: StructuredOutputs) -> Any:
            assert self.may_compile.wait(60)
            return compile(wanted)

        monkeypatch.setattr(grammars, "_compile", compile_late)

    def add(self, handle: int, params: SamplingParams) -> None:
        self.worker._handle(Add(handle, f"r{handle}", EnginePrompt("Once", [5, 6]), params, None, 0.0))

    def compile(self) -> None:
        """Let the pending grammars compile, and add their requests."""
        grammars = [pending.grammar for pending in self.worker._pending._waiting.values()]
        self.may_compile.set()
        for future in grammars:
            future.exception()
        self.worker._add_compiled()

    def run(self) -> None:
        while self.engine.has_unfinished:
            self.engine.advance()

    def sent(self) -> Iterator[EngineOutputs]:
        self.worker._outbox.flush()
        yield from self._unpacker.feed(self._sock.recv(1 << 16))


def demand(text: str) -> SamplingParams:
    return SamplingParams(max_tokens=3, structured_outputs=StructuredOutputs(regex=text))


@pytest.fixture
def rig(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(runtime, monkeypatch)


def test_other_requests_run_while_a_grammar_is_compiled(rig: Rig) -> None:
    rig.add(1, demand("a+"))
    rig.add(2, PLAIN)
    rig.run()
    (outputs,) = rig.sent()
    assert [handle for handle, *_ in outputs.deltas or ()] == [2]
    rig.compile()
    assert [builder.request_id for builder in rig.engine._outputs.values()] == ["r1"]
    rig.may_compile.clear()
    rig.add(3, demand("a+"))  # compiled before, so it is added at once
    assert len(rig.engine._outputs) == 2
    rig.run()


def test_requests_are_aborted_and_forgotten_while_their_grammars_compile(rig: Rig) -> None:
    for handle, text in ((1, "a+"), (2, "b+"), (3, "(")):
        rig.add(handle, demand(text))
    rig.worker._handle(Abort(1))
    rig.worker._handle(Forget(2))
    rig.compile()
    assert not rig.engine.has_unfinished
    (outputs,) = rig.sent()
    (delta,) = outputs.deltas or ()
    assert (delta[0], outputs.refused is not None) == (1, True)
    ((handle, error),) = outputs.refused or ()
    assert handle == 3
    assert isinstance(error, InvalidArgumentError)
    assert [rig.worker._outbox.name_of(handle) for handle in (1, 2, 3)] == [None] * 3


@pytest.mark.parametrize("tag", ["{}", '{"type": "structural_tag", "format": []}'])
def test_structural_tags_that_cannot_be_read_end_their_request_only(rig: Rig, tag: str) -> None:
    rig.add(1, SamplingParams(structured_outputs=StructuredOutputs(structural_tag=tag)))
    rig.add(2, PLAIN)
    rig.run()
    (outputs,) = rig.sent()
    ((handle, error),) = outputs.refused or ()
    assert (handle, [handle for handle, *_ in outputs.deltas or ()]) == (1, [2])
    assert isinstance(error, InvalidArgumentError)
