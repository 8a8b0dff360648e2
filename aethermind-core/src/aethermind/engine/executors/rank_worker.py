"""The worker process of one rank, started by `worker_group`.

    python -m aethermind.engine.executors.rank_worker COMMANDS_FD REPLIES_FD MEMORY_FD PARENT_PID RANK SIZE VERSION

It loads its part of a model and then runs the commands of rank 0: it runs the same graphs on the same inputs, and
copies the same blocks. Another thread sends the content of blocks on request. The process ends on command, and when
rank 0 has ended.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from aethermind.cache.swap_store import BlockMover
from aethermind.engine.config import EngineConfig
from aethermind.engine.kv_memory.memory import KVMemory, StagingBlocks
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_graph import GraphKey, GraphKind
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.process.protocol import Unpacker, pack
from aethermind.engine.process.start import check_version, init_child
from aethermind.graph.executor import PlanExecutor
from aethermind.hal.communicator import SharedMemoryCommunicator
from aethermind.runtime import Runtime

__all__ = ["main"]

_POLL_INTERVAL_S = 0.5
"""Seconds between two checks that the parent is alive."""


def main(commands_fd: int, replies_fd: int, memory_fd: int, parent_pid: int, rank: int, size: int, version: str) -> int:
    """Run commands that arrive on a socket, and reply to reads on another one; returns the exit code."""
    init_child()
    logging.getLogger("aethermind").setLevel(logging.ERROR)  # rank 0 logs warnings
    threading.Thread(target=_exit_with_parent, args=[parent_pid], daemon=True).start()
    with socket.socket(fileno=commands_fd) as sock, socket.socket(fileno=replies_fd) as reply_sock:
        try:
            check_version(version)
            communicator = SharedMemoryCommunicator(rank, size, memory_fd)
            _serve(sock, reply_sock, communicator)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 0  # rank 0 has ended
        except Exception as error:
            sock.sendall(pack(["failed", error]))
            return 1
    return 0


def _exit_with_parent(parent_pid: int) -> None:
    """End this process when its parent has ended; runs in a thread of its own."""
    while os.getppid() == parent_pid:
        time.sleep(_POLL_INTERVAL_S)
    os._exit(0)


def _serve(sock: socket.socket, reply_sock: socket.socket, communicator: SharedMemoryCommunicator) -> None:
    unpacker = Unpacker()
    worker: _Worker | None = None
    while True:
        data = sock.recv(1 << 18)
        if not data:
            raise EOFError
        for command, *arguments in unpacker.feed(data):
            if command == "close":
                return
            if command == "barrier":
                sock.sendall(pack(["here"]))
            elif command == "load":
                model, config = arguments
                worker = _Worker(model, config, communicator)
                threading.Thread(target=_serve_reads, args=[reply_sock, worker], daemon=True).start()
            else:
                assert worker is not None, "load is the first command"
                getattr(worker, command)(*arguments)


def _serve_reads(sock: socket.socket, worker: _Worker) -> None:
    """Send the content of blocks on request; runs in a thread of its own, concurrently with steps."""
    unpacker = Unpacker()
    with suppress(OSError):  # rank 0 has ended
        while data := sock.recv(1 << 18):
            for kind, blocks, num_moves in unpacker.feed(data):
                reply: Any
                try:
                    reply = worker.read_blocks(kind, blocks, num_moves)
                except Exception as error:
                    reply = error
                sock.sendall(pack(reply))


class _Worker:
    """A rank's part of a model. Its public methods are the commands of rank 0."""

    def __init__(self, model: str, config: EngineConfig, communicator: SharedMemoryCommunicator) -> None:
        self._compiled = compiled = compile_model(Runtime.boot(), model, config, rank=communicator.rank)
        assert compiled.parallel is not None, "one of several ranks"
        self._parallel = compiled.parallel
        if compiled.open_device.backend.capabilities.is_host_accessible:
            compiled.parallel.kernels.connect(communicator)
        self._memory = KVMemory.of(compiled)
        self._constants = open_constants(compiled)
        self._executors: dict[GraphKey, PlanExecutor] = {}
        self._swap_areas: list[BlockMover] = []
        self._read_staging: dict[str, StagingBlocks] = {}
        self._write_staging: dict[str, StagingBlocks] = {}
        self._ranges = compiled.open_device.backend.profiler_ranges() if config.profiler_ranges else None
        self._moved = threading.Condition()
        self._num_moves = 0

    def open(self, has_embeddings: bool, kind: str, has_adapters: bool) -> None:
        """Prepare a graph; rank 0 alone computes what follows the logits."""
        key = GraphKey(has_embeddings=has_embeddings, kind=GraphKind(kind), has_adapters=has_adapters)
        if key in self._executors:
            return
        compiled = self._compiled
        plan = (compiled.step if key == compiled.key else compiled.compile(key)).plan
        self._constants.load(plan)
        opened = compiled.open_device
        self._executors[key] = PlanExecutor(
            plan, opened.backend, opened.device, self._constants, self._memory.tensors, ranges=self._ranges
        )

    def join(self, address: str) -> None:
        """Join the communicator of the device's own collectives."""
        share, backend = self._parallel.share, self._compiled.open_device.backend
        backend.communicator(share.rank, share.size, address)

    def run(
        self,
        has_embeddings: bool,
        kind: str,
        has_adapters: bool,
        symbols: Sequence[int],
        inputs: Mapping[str, bytes],
    ) -> None:
        """Run a graph on these inputs."""
        key = GraphKey(has_embeddings=has_embeddings, kind=GraphKind(kind), has_adapters=has_adapters)
        executor = self._executors[key]
        for name, data in inputs.items():
            array = executor.host_inputs[name]
            values = np.frombuffer(data, array.dtype)
            array[: len(values)] = values
        executor.run(tuple(symbols))
        executor.synchronize()

    def move_blocks(self, command: str, *arguments: Any) -> None:
        """Run a command that changes blocks, and count it for `read_blocks`."""
        getattr(self, command)(*arguments)
        with self._moved:
            self._num_moves += 1
            self._moved.notify_all()

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, (source, destination) each."""
        self._memory.copy_blocks(copies)

    def copy_states(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy state slots, (source, destination) each."""
        self._memory.copy_states([(source, destination) for source, destination in copies])

    def alloc_host_states(self, num_slots: int) -> None:
        """Allocate state slots in host memory."""
        self._memory.alloc_host_states(num_slots)

    def alloc_swap_blocks(self, num_blocks: int) -> None:
        """Allocate host memory for swapped blocks; areas are numbered from 0."""
        self._swap_areas.append(self._memory.alloc_swap_blocks(num_blocks))

    def move_out(self, number: int, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy blocks to a swap area."""
        self._swap_areas[number].move_out(blocks, host_blocks)

    def move_in(self, number: int, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy blocks back from a swap area."""
        self._swap_areas[number].move_in(host_blocks, blocks)

    def alloc_staging(self, kind: str, num_blocks: int) -> None:
        """Allocate staging areas to read and to write blocks or states (`kind`)."""
        memory = self._memory
        alloc = memory.alloc_staging_states if kind == "states" else memory.alloc_staging_blocks
        self._read_staging[kind] = alloc(num_blocks, has_own_stream=True)
        self._write_staging[kind] = alloc(num_blocks)

    def write_blocks(self, kind: str, blocks: Sequence[int], parts: Mapping[str, bytes]) -> None:
        """Write bytes of each tensor to blocks, or to state slots."""
        staging = self._write_staging[kind]
        for name, rows in staging.rows().items():
            rows[: len(blocks)] = np.frombuffer(parts[name], np.uint8).reshape(len(blocks), -1)
        staging.move_in(range(len(blocks)), blocks)

    def read_blocks(self, kind: str, blocks: Sequence[int], num_moves: int) -> dict[str, bytes]:
        """Return the bytes of each tensor of blocks, after `num_moves` commands that change blocks.

        Called in the thread of `_serve_reads`, concurrently with steps.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._num_moves >= num_moves)
        staging = self._read_staging[kind]
        staging.move_out(blocks, range(len(blocks)))
        return {name: rows[: len(blocks)].tobytes() for name, rows in staging.rows().items()}


if __name__ == "__main__":
    _commands_fd, _replies_fd, _memory_fd, _parent_pid, _rank, _size = map(int, sys.argv[1:7])
    sys.exit(main(_commands_fd, _replies_fd, _memory_fd, _parent_pid, _rank, _size, sys.argv[7]))
