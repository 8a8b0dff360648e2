"""The other ranks of a model, as rank 0 has them: a process each, and memory in which all meet.

Each has two sockets: one for what it is told, in order, and one on which it answers beside that what blocks hold.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aethermind.engine.process.protocol import Unpacker, pack
from aethermind.engine.process.start import blocked_signals, child_command, child_environment, describe_exit
from aethermind.errors import AetherMindError, EngineDeadError, in_words
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
    then every call is an EngineDeadError that says why. One thread calls, but for `read_blocks`.
    """

    def __init__(self, planned: PlannedModel) -> None:
        """Start them; they plan and load while rank 0 does."""
        self.size = planned.config.tensor_parallel_size
        self._failure: AetherMindError | None = None
        self._others: list[_Rank] = []
        self._num_moves = 0
        self._reading = threading.Lock()
        self._may_read = True
        self._selector = selectors.DefaultSelector()
        memory = shared_file(self.size)
        try:
            self.communicator = SharedMemoryCommunicator(0, self.size, memory, self.check)
            for rank in range(1, self.size):
                other = _Rank.start(rank, self.size, memory)
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
            self._send(other, data)

    def move(self, what: str, *arguments: Any) -> None:
        """The same for what blocks hold: who reads blocks later finds it done."""
        self._num_moves += 1
        self.tell("move", what, *arguments)

    def write_blocks(self, blocks: Sequence[int], parts: Sequence[Mapping[str, bytes]]) -> None:
        """Have blocks hold these bytes of each tensor, which are other ones for each of the ranks 1 and up."""
        self.check()
        self._num_moves += 1
        for other, part in zip(self._others, parts, strict=True):
            self._send(other, pack(["move", "write_blocks", list(blocks), dict(part)]))

    def read_blocks(self, blocks: Sequence[int], ranks: Collection[int]) -> dict[int, Mapping[str, bytes]]:
        """What some ranks have of blocks, the bytes of each tensor by rank. In any thread, beside steps, which must not
        write these blocks.
        """
        with self._reading:
            if self._failure is not None or not self._may_read:
                raise self._failure or EngineDeadError("Another rank does not answer any more.")
            self._may_read = False  # unless all have answered, what comes next is the answer to this
            others = [other for other in self._others if other.rank in ranks]
            try:
                for other in others:
                    other.ask(blocks, self._num_moves)
                found = {other.rank: other.hear_answer() for other in others}
            except (OSError, EOFError) as error:
                raise EngineDeadError("Another rank ended.") from error
            self._may_read = True
        failed = next((one for one in found.values() if isinstance(one, Exception)), None)
        if failed is not None:
            raise failed if isinstance(failed, AetherMindError) else EngineDeadError(f"Another rank failed: {failed}")
        return found

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
                self._failure = EngineDeadError(f"A step ended before its time: {in_words(error)}")
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
        who = f"Rank {other.rank} of {self.size}"
        if error is None:
            error = EngineDeadError(f"{who} {other.describe_end()}.")
        elif not isinstance(error, AetherMindError):
            error = EngineDeadError(f"{who} failed: {error}")
        assert isinstance(error, AetherMindError)
        self._failure = error
        self._end()
        raise error

    def _send(self, other: _Rank, data: bytes) -> None:
        try:
            other.socket.sendall(data)
        except OSError:
            self._fail(other)

    def _end(self, grace_s: float = 0.0) -> None:
        for other in self._others:
            other.end(grace_s)
        with self._reading:  # whoever waits for an answer has seen the end
            for other in self._others:
                other.answers.close()
        self._selector.close()
        self._others.clear()


class _Rank:
    """One process."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], ours: socket.socket, answers: socket.socket
    ) -> None:
        self.rank = rank
        self.socket = ours
        self.answers = answers
        self.has_hung_up = False
        self._process = process
        self._unpacker = Unpacker()
        self._answered = Unpacker()

    @classmethod
    def start(cls, rank: int, size: int, memory: int) -> _Rank:
        ours, theirs = socket.socketpair()
        answers, their_answers = socket.socketpair()
        with theirs, their_answers:
            numbers = (theirs.fileno(), their_answers.fileno(), memory, os.getpid(), rank, size)
            try:
                with blocked_signals():
                    process = subprocess.Popen(
                        child_command("aethermind.engine.executors.follower", *numbers),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env=child_environment(),
                        pass_fds=[theirs.fileno(), their_answers.fileno(), memory],
                    )
            except BaseException:
                ours.close()
                answers.close()
                raise
        return cls(rank, process, ours, answers)

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

    def ask(self, blocks: Sequence[int], num_moves: int) -> None:
        """Ask what it has of blocks, once it has done that many moves."""
        self.answers.sendall(pack([list(blocks), num_moves]))

    def hear_answer(self) -> Any:
        """Wait for the answer: bytes by tensor, or an error. EOFError when it has ended."""
        while data := self.answers.recv(1 << 20):
            for answer in self._answered.feed(data):
                return answer
        raise EOFError

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
