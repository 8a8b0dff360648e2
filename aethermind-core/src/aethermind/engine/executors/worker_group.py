"""The worker processes of ranks 1 and up, as seen from rank 0: one process each, and shared memory for collectives.

Each worker has two sockets: one for commands, which it runs in order, and one on which it sends the content of blocks
concurrently.
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
from aethermind.errors import AetherMindError, EngineDeadError, describe_exception
from aethermind.hal.communicator import SharedMemoryCommunicator, shared_file
from aethermind.hal.device import DeviceId

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["WorkerGroup"]

_GRACE_S = 2.0
"""How long a process may take to end after the command to close."""


class WorkerGroup:
    """Ranks 1 and up of a compiled model, in processes on this machine that end with this one. Mutable.

    They run commands in order. If one of them ends, or a run of rank 0 fails, all are ended, and every later call
    raises an EngineDeadError with the reason. One thread calls the methods, except `read_blocks`.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        """Start the workers, which compile and load the model concurrently with rank 0."""
        self.size = compiled.config.tensor_parallel_size
        self._failure: AetherMindError | None = None
        self._workers: list[_WorkerProcess] = []
        self._num_moves = 0
        self._read_lock = threading.Lock()
        self._can_read = True
        self._selector = selectors.DefaultSelector()
        memory_fd = shared_file(self.size)
        try:
            self.communicator = SharedMemoryCommunicator(0, self.size, memory_fd, self.check)
            for rank in range(1, self.size):
                worker = _WorkerProcess.start(rank, self.size, memory_fd)
                self._workers.append(worker)
                self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        except OSError as error:
            self._end()
            raise EngineDeadError(f"Another rank could not be started: {error.strerror or error}.") from error
        finally:
            os.close(memory_fd)
        config = replace(
            compiled.config,
            dtype=compiled.dtype.label,
            num_kv_blocks=compiled.num_kv_blocks,
            draft_model=None,  # a KV store remains: it decides how layers are grouped, and no worker opens it
            swap_space=0.0,
        )
        opened = compiled.open_device
        is_on_host = opened.backend.capabilities.is_host_accessible
        for worker in self._workers:  # one device each, if there are several
            index = opened.device.index + (0 if is_on_host else worker.rank)
            worker_config = replace(config, device=str(DeviceId(opened.device.type, index)))
            worker.socket.sendall(pack(["load", str(compiled.source.path), worker_config]))

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def broadcast(self, command: str, *arguments: Any) -> None:
        """Send a command to all workers (see `rank_worker`), without waiting for its end."""
        self.check()
        data = pack([command, *arguments])
        for worker in self._workers:
            self._send(worker, data)

    def broadcast_move(self, command: str, *arguments: Any) -> None:
        """Send a command that changes blocks; `read_blocks` waits for the commands sent before it."""
        self._num_moves += 1
        self.broadcast("move_blocks", command, *arguments)

    def write_blocks(self, kind: str, blocks: Sequence[int], parts: Sequence[Mapping[str, bytes]]) -> None:
        """Write bytes of each tensor to blocks, or to state slots; `parts` has those of each of the ranks 1 and up."""
        self.check()
        self._num_moves += 1
        for worker, part in zip(self._workers, parts, strict=True):
            self._send(worker, pack(["move_blocks", "write_blocks", kind, list(blocks), dict(part)]))

    def read_blocks(self, kind: str, blocks: Sequence[int], ranks: Collection[int]) -> dict[int, Mapping[str, bytes]]:
        """Return the content of blocks, or of state slots, on some ranks: the bytes of each tensor by rank.

        It may be called in any thread, concurrently with steps that do not write these blocks.
        """
        with self._read_lock:
            if self._failure is not None or not self._can_read:
                raise self._failure or EngineDeadError("Another rank does not answer any more.")
            self._can_read = False  # until all have replied, the next message would be the reply to this request
            workers = [worker for worker in self._workers if worker.rank in ranks]
            try:
                for worker in workers:
                    worker.request_blocks(kind, blocks, self._num_moves)
                contents = {worker.rank: worker.receive_reply() for worker in workers}
            except (OSError, EOFError) as error:
                raise EngineDeadError("Another rank ended.") from error
            self._can_read = True
        failed = next((value for value in contents.values() if isinstance(value, Exception)), None)
        if failed is not None:
            raise failed if isinstance(failed, AetherMindError) else EngineDeadError(f"Another rank failed: {failed}")
        return contents

    def barrier(self) -> None:
        """Wait until all workers have run their commands; raises the error of one that failed."""
        self.broadcast("barrier")
        waiting = set(self._workers)
        while waiting:
            waiting -= self._listen(None)

    def check(self) -> None:
        """Raise if a worker has ended."""
        if self._failure is not None:
            raise self._failure
        self._listen(0.0)

    @contextmanager
    def collective_run(self) -> Iterator[None]:
        """Wrap a run with collectives. If rank 0 fails, the workers are ended, because they would wait forever."""
        try:
            yield
        except BaseException as error:
            if self._failure is None:
                self._failure = EngineDeadError(f"A step ended before its time: {describe_exception(error)}")
            self._end()
            raise

    def close(self) -> None:
        """End the workers."""
        if self._failure is None:
            with suppress(EngineDeadError):
                self.broadcast("close")
            self._failure = EngineDeadError("The engine was closed.")
        self._end(_GRACE_S)

    def _listen(self, timeout_s: float | None) -> set[_WorkerProcess]:
        """Receive messages of the workers; returns those that have reached a barrier."""
        done = set()
        for key, _ in self._selector.select(timeout_s):
            worker: _WorkerProcess = key.data
            for message, *arguments in worker.receive():
                if message == "failed":
                    self._fail(worker, arguments[0])
                done.add(worker)
            if worker.has_hung_up:
                self._fail(worker)
        return done

    def _fail(self, worker: _WorkerProcess, error: Exception | None = None) -> None:
        """End all workers because one failed."""
        rank = f"Rank {worker.rank} of {self.size}"
        if error is None:
            error = EngineDeadError(f"{rank} {worker.describe_end()}.")
        elif not isinstance(error, AetherMindError):
            error = EngineDeadError(f"{rank} failed: {error}")
        assert isinstance(error, AetherMindError)
        self._failure = error
        self._end()
        raise error

    def _send(self, worker: _WorkerProcess, data: bytes) -> None:
        try:
            worker.socket.sendall(data)
        except OSError:
            self._fail(worker)

    def _end(self, grace_s: float = 0.0) -> None:
        for worker in self._workers:
            worker.end(grace_s)
        with self._read_lock:  # a thread that waits for a reply has been woken by the end of the process
            for worker in self._workers:
                worker.reply_sock.close()
        self._selector.close()
        self._workers.clear()


class _WorkerProcess:
    """One worker process with its sockets."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], ours: socket.socket, reply_sock: socket.socket
    ) -> None:
        self.rank = rank
        self.socket = ours
        self.reply_sock = reply_sock
        self.has_hung_up = False
        self._process = process
        self._unpacker = Unpacker()
        self._reply_unpacker = Unpacker()

    @classmethod
    def start(cls, rank: int, size: int, memory_fd: int) -> _WorkerProcess:
        ours, theirs = socket.socketpair()
        reply_sock, their_reply_sock = socket.socketpair()
        with theirs, their_reply_sock:
            numbers = (theirs.fileno(), their_reply_sock.fileno(), memory_fd, os.getpid(), rank, size)
            try:
                with blocked_signals():
                    process = subprocess.Popen(
                        child_command("aethermind.engine.executors.rank_worker", *numbers),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env=child_environment(),
                        pass_fds=[theirs.fileno(), their_reply_sock.fileno(), memory_fd],
                    )
            except BaseException:
                ours.close()
                reply_sock.close()
                raise
        return cls(rank, process, ours, reply_sock)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def receive(self) -> list[Any]:
        """Receive messages; blocks until there is one, or until the process ends."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.has_hung_up = not data
        return list(self._unpacker.feed(data))

    def request_blocks(self, kind: str, blocks: Sequence[int], num_moves: int) -> None:
        """Request the content of blocks, or of state slots, after that many changes."""
        self.reply_sock.sendall(pack([kind, list(blocks), num_moves]))

    def receive_reply(self) -> Any:
        """Wait for the reply to `request_blocks`: bytes by tensor, or an error. EOFError if the process has ended."""
        while data := self.reply_sock.recv(1 << 20):
            for reply in self._reply_unpacker.feed(data):
                return reply
        raise EOFError

    def describe_end(self) -> str:
        """Describe how the process ended."""
        try:
            return describe_exit(self._process.wait(_GRACE_S))
        except subprocess.TimeoutExpired:
            return "hung up"

    def end(self, grace_s: float) -> None:
        """Wait up to `grace_s` seconds for the process's end, then kill it."""
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            if grace_s:
                self._process.wait(grace_s)
        self._process.kill()
        self._process.wait()
