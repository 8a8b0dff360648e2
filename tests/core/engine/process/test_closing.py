"""The end of an engine process: it sends a message after each session that it saves, and is killed only when silent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from aethermind import RequestOptions, SamplingParams
from aethermind.engine.config import EngineConfig
from aethermind.engine.process.protocol import Add, Close, EngineOutputs, Setup, Unpacker, pack
from aethermind.engine.process.supervisor import Child, ChildListener
from aethermind.engine.process.worker import Outbox, _Inbox, _serve
from aethermind.engine.requests.prompt_reader import EnginePrompt
from aethermind.engine.requests.session_files import list_session_files

TIMEOUT_S = 5.0


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when a test says so."""

    now = 0.0

    def time(self) -> float:
        return self.now


class FakeProcess:
    """A process that ends when it is killed, or when its connection does."""

    pid, returncode, was_killed = 1, None, False

    def __init__(self, listener: ChildListener) -> None:
        self._listener = listener

    def kill(self) -> None:
        self.was_killed = True
        self._listener.connection_lost(None)

    async def wait(self) -> int:
        self.returncode = cast(Any, 0)
        return 0


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_process_is_killed_when_it_says_nothing(is_silent: bool) -> None:
    async def close() -> bool:
        loop = cast(ManualLoop, asyncio.get_running_loop())
        listener = ChildListener(lambda _: None)
        process, transport = FakeProcess(listener), cast(Any, _Transport())
        child = Child(cast(Any, process), transport, listener)
        closing = asyncio.create_task(child.close(TIMEOUT_S))
        for _ in range(10):
            await pause()
            loop.now += 0.8 * TIMEOUT_S
            if not is_silent:
                listener.data_received(pack(EngineOutputs([])))
        await pause()
        was_killed = process.was_killed
        listener.connection_lost(None)
        await closing
        return was_killed

    async def pause() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        assert runner.run(close()) is is_silent


class _Transport:
    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        """Take a message."""

    def close(self) -> None:
        """Do nothing."""


def test_a_message_follows_each_saved_session(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    config = EngineConfig.of(device="cpu", max_model_len=64, block_size=4, session_dir=str(tmp_path))
    worker = threading.Thread(target=lambda: _serve(_Inbox(theirs), Outbox(theirs), ""), daemon=True)
    unpacker = Unpacker()

    def receive_until(is_last: Callable[[EngineOutputs], bool]) -> None:
        received: list[Any] = []
        while not any(map(is_last, received)):
            received = list(unpacker.feed(ours.recv(1 << 16)))

    with ours, theirs, pytest.MonkeyPatch.context() as patch:
        patch.setattr("aethermind.engine.process.worker.check_version", lambda _: None)
        patch.setattr("gc.freeze", lambda: None)
        worker.start()
        ours.sendall(pack(Setup("demo", config, 30)))
        receive_until(lambda outputs: outputs.loaded is not None)
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        for handle in range(3):
            prompt, options = EnginePrompt(None, list(range(5, 25))), RequestOptions(session=f"s{handle}")
            ours.sendall(pack(Add(handle, f"r{handle}", cast(Any, prompt), params, options, 0.0)))
        receive_until(lambda outputs: outputs.stats is not None and outputs.stats.num_sessions == 3)
        ours.sendall(pack(Close()))
        worker.join(60)
        theirs.shutdown(socket.SHUT_WR)
        after: list[Any] = [each for data in iter(lambda: ours.recv(1 << 16), b"") for each in unpacker.feed(data)]
    assert len(list_session_files(tmp_path)) == 3
    assert sum(outputs.stats is not None for outputs in after) >= 3
