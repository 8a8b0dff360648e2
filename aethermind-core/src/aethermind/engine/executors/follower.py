"""The process of one rank: `python -m aethermind.engine.executors.follower FD MEMORY PARENT RANK SIZE VERSION`.

It loads its part of a model and then follows rank 0: runs the graphs that it runs, on the same inputs, and copies the
blocks that it copies. It ends when it is told to, and when rank 0 has gone.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from aethermind.engine.config import EngineConfig
from aethermind.engine.kv_memory.memory import HostBlocks, KVMemory
from aethermind.engine.loading.loader import plan_model
from aethermind.engine.loading.model_graph import GraphKey, Part
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.process.start import begin, check_version
from aethermind.engine.process.wire import Unpacker, pack
from aethermind.graph.executor import Executor
from aethermind.hal.shared_memory import SharedMemoryCommunicator
from aethermind.runtime import Runtime

__all__ = ["main"]

_LOOK_S = 0.5
"""Between two looks for the parent."""


def main(fd: int, memory: int, parent: int, rank: int, size: int, version: str) -> int:
    """Follow whoever holds the other end of a socket; returns the exit code."""
    begin()
    logging.getLogger("aethermind").setLevel(logging.ERROR)  # rank 0 has said what there is to warn of
    threading.Thread(target=_end_with, args=[parent], daemon=True).start()
    with socket.socket(fileno=fd) as sock:
        try:
            check_version(version)
            communicator = SharedMemoryCommunicator(rank, size, memory)
            _follow(sock, communicator)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 0  # nobody is there any more
        except Exception as error:
            sock.sendall(pack(["failed", error]))
            return 1
    return 0


def _end_with(parent: int) -> None:
    """In a thread of its own: wherever this process waits for others, it ends when its parent has."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(0)


def _follow(sock: socket.socket, communicator: SharedMemoryCommunicator) -> None:
    unpacker = Unpacker()
    follower: _Follower | None = None
    while True:
        data = sock.recv(1 << 18)
        if not data:
            raise EOFError
        for what, *arguments in unpacker.feed(data):
            if what == "close":
                return
            if what == "meet":
                sock.sendall(pack(["here"]))
            elif what == "load":
                model, config = arguments
                follower = _Follower(model, config, communicator)
            else:
                assert follower is not None, "rank 0 says first what to load"
                getattr(follower, what)(*arguments)


class _Follower:
    """A rank's part of a model; its methods are what rank 0 says."""

    def __init__(self, model: str, config: EngineConfig, communicator: SharedMemoryCommunicator) -> None:
        self._planned = planned = plan_model(Runtime.boot(), model, config, rank=communicator.rank)
        assert planned.parallel is not None, "one of several ranks"
        self._parallel = planned.parallel
        if planned.open_device.backend.capabilities.is_host_accessible:
            planned.parallel.kernels.connect(communicator)
        self._memory = KVMemory.of(planned)
        self._constants = open_constants(planned)
        self._executors: dict[GraphKey, Executor] = {}
        self._host_blocks: list[HostBlocks] = []

    def open(self, has_embeddings: bool, part: str, has_adapters: bool) -> None:
        """Prepare a graph; whatever follows the logits is rank 0's."""
        key = GraphKey(has_embeddings=has_embeddings, part=Part(part), has_adapters=has_adapters)
        if key in self._executors:
            return
        planned = self._planned
        plan = (planned.compiled if key == planned.key else planned.compile(key)).plan
        self._constants.load(plan)
        opened = planned.open_device
        self._executors[key] = Executor(plan, opened.backend, opened.device, self._constants, self._memory.tensors)

    def join(self, address: str) -> None:
        """Meet the other ranks by the device's own collectives."""
        share, backend = self._parallel.share, self._planned.open_device.backend
        backend.communicator(share.rank, share.size, address)

    def run(
        self,
        has_embeddings: bool,
        part: str,
        has_adapters: bool,
        symbols: Sequence[int],
        inputs: Mapping[str, bytes],
    ) -> None:
        """Run a graph on these inputs."""
        key = GraphKey(has_embeddings=has_embeddings, part=Part(part), has_adapters=has_adapters)
        executor = self._executors[key]
        for name, data in inputs.items():
            array = executor.host_inputs[name]
            values = np.frombuffer(data, array.dtype)
            array[: len(values)] = values
        executor.run(tuple(symbols))
        executor.synchronize()

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, (source, destination) each."""
        self._memory.copy_blocks(copies)

    def host_blocks(self, num_blocks: int) -> None:
        """Set room in host memory aside; it is called by its number, from 0 on."""
        self._host_blocks.append(self._memory.host_blocks(num_blocks))

    def move_out(self, number: int, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy blocks to host memory."""
        self._host_blocks[number].move_out(blocks, host_blocks)

    def move_in(self, number: int, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy blocks back."""
        self._host_blocks[number].move_in(host_blocks, blocks)


if __name__ == "__main__":
    _fd, _memory, _parent, _rank, _size = map(int, sys.argv[1:6])
    sys.exit(main(_fd, _memory, _parent, _rank, _size, sys.argv[6]))
