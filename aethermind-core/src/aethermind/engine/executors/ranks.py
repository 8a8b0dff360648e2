"""The other ranks of a model, as rank 0 has them: a process and a socket for each, and memory in which all meet."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aethermind.engine.process.start import child_command, child_environment, describe_exit, signals_held
from aethermind.engine.process.wire import Unpacker, pack
from aethermind.errors import AetherMindError, EngineDeadError
from aethermind.hal.device import DeviceId
from aethermind.hal.shared_memory import SharedMemoryCommunicator, shared_file

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel

__all__ = ["Ranks"]

_GRACE_S = 2.0
"""How long a process may take to end once it was told to."""


class Ranks:
    """Ranks 1 and up of a planned model, in processes on this machine that end with this one. Mutable.

    They do what they are told, in order. Whatever ends one of them, or ends a run of rank 0 before its time, ends all:
    then every call is an EngineDeadError that says why.
    """

    def __init__(self, planned: PlannedModel) -> None:
        """Start them; they plan and load while rank 0 does."""
        self._size = planned.config.tensor_parallel_size
        self._failure: AetherMindError | None = None
        self._others: list[_Rank] = []
        self._selector = selectors.DefaultSelector()
        memory = shared_file(self._size)
        try:
            self.communicator = SharedMemoryCommunicator(0, self._size, memory, self.check)
            for rank in range(1, self._size):
                other = _Rank.start(rank, self._size, memory)
                self._others.append(other)
                self._selector.register(other.socket, selectors.EVENT_READ, other)
        except OSError as error:
            self._end()
            raise EngineDeadError(f"Another rank could not be started: {error.strerror or error}.") from error
        finally:
            os.close(memory)
        config = replace(
            planned.config,
            dtype=planned.dtype.label,
            num_kv_blocks=planned.num_kv_blocks,
            draft_model=None,
            kv_store=None,
            swap_space=0.0,
        )
        opened = planned.open_device
        is_on_host = opened.backend.capabilities.is_host_accessible
        for other in self._others:  # a device each, where there are several
            index = opened.device.index + (0 if is_on_host else other.rank)
            own = replace(config, device=str(DeviceId(opened.device.type, index)))
            other.socket.sendall(pack(["load", str(planned.source.path), own]))

    @property
    def pids(self) -> list[int]:
        """The ids of their processes."""
        return [other.pid for other in self._others]

    def tell(self, what: str, *arguments: Any) -> None:
        """Have all of them do something, see `follower`; it is not waited for."""
        self.check()
        data = pack([what, *arguments])
        for other in self._others:
            try:
                other.socket.sendall(data)
            except OSError:
                self._fail(other)

    def meet(self) -> None:
        """Wait until all have done what they were told; raises what keeps one of them from it."""
        self.tell("meet")
        waiting = set(self._others)
        while waiting:
            waiting -= self._listen(None)

    def check(self) -> None:
        """Raise where one of them has ended."""
        if self._failure is not None:
            raise self._failure
        self._listen(0.0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what all ranks run: others would wait for ever where rank 0 leaves it before its time, so they end."""
        try:
            yield
        except BaseException as error:
            if self._failure is None:
                self._failure = EngineDeadError(f"A step ended before its time: {type(error).__name__}: {error}")
            self._end()
            raise

    def close(self) -> None:
        """End them."""
        if self._failure is None:
            with suppress(EngineDeadError):
                self.tell("close")
            self._failure = EngineDeadError("The engine was closed.")
        self._end(_GRACE_S)

    def _listen(self, timeout_s: float | None) -> set[_Rank]:
        """Read what they say; returns those that are done."""
        done = set()
        for key, _ in self._selector.select(timeout_s):
            other: _Rank = key.data
            for word, *arguments in other.hear():
                if word == "failed":
                    self._fail(other, arguments[0])
                done.add(other)
            if other.has_hung_up:
                self._fail(other)
        return done

    def _fail(self, other: _Rank, error: Exception | None = None) -> None:
        """All end, because one did."""
        who = f"Rank {other.rank} of {self._size}"
        if error is None:
            error = EngineDeadError(f"{who} {other.describe_end()}.")
        elif not isinstance(error, AetherMindError):
            error = EngineDeadError(f"{who} failed: {error}")
        assert isinstance(error, AetherMindError)
        self._failure = error
        self._end()
        raise error

    def _end(self, grace_s: float = 0.0) -> None:
        for other in self._others:
            other.end(grace_s)
        self._selector.close()
        self._others.clear()


class _Rank:
    """One process."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self.rank = rank
        self.socket = ours
        self.has_hung_up = False
        self._process = process
        self._unpacker = Unpacker()

    @classmethod
    def start(cls, rank: int, size: int, memory: int) -> _Rank:
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = (theirs.fileno(), memory, os.getpid(), rank, size)
            try:
                with signals_held():
                    process = subprocess.Popen(
                        child_command("aethermind.engine.executors.follower", *numbers),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env=child_environment(),
                        pass_fds=[theirs.fileno(), memory],
                    )
            except BaseException:
                ours.close()
                raise
        return cls(rank, process, ours)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def hear(self) -> list[Any]:
        """What it has said; there has to be something, or its end."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.has_hung_up = not data
        return list(self._unpacker.feed(data))

    def describe_end(self) -> str:
        """How it ended, in words."""
        try:
            return describe_exit(self._process.wait(_GRACE_S))
        except subprocess.TimeoutExpired:
            return "hung up"

    def end(self, grace_s: float) -> None:
        """Wait that long for its end, then kill it."""
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            if grace_s:
                self._process.wait(grace_s)
        self._process.kill()
        self._process.wait()
