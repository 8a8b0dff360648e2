"""The executor of several ranks on one machine: tensor parallelism over processes (Shoeybi et al. 2019).

Rank 0, the *driver*, is the process of the engine. Before it runs a graph, it sends the workers (ranks 1 and up) a
command to run the same graph, with its inputs; between runs it sends commands to copy blocks. So all ranks compute
steps, prompt log probabilities, embeddings and K-shifts, and neither the engine nor `ModelRunner` depends on them.

The heads of a KV cache are divided among the ranks, so each rank has a shard of every block, and of recurrent states.
Workers repeat each copy of blocks or states that the driver makes. For a KV store or a file, whole blocks and states
are gathered in the driver: what is stored has all heads, and does not depend on the number of ranks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aethermind.engine.executors.worker_group import WorkerGroup
from aethermind.engine.kv_memory.memory import KVMemory, StagingBlocks
from aethermind.engine.loading.model_graph import GraphKey, GraphKind
from aethermind.engine.steps.model_runner import ModelRunner
from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.graph.compile import Compiled
from aethermind.graph.executor import CaptureHook, PlanExecutor
from aethermind.graph.tensor_parallel import StateShards, without_outputs
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import num_elements
from aethermind.ops.dims import resolve

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.cache.swap_store import BlockMover
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.hal.tensor import Tensor

__all__ = ["DriverKVMemory", "MultiprocExecutor"]

_PIECE_BYTES = 4 * 2**20
"""Bytes of one rank's shards that are sent between processes at a time."""


class DriverKVMemory(KVMemory):
    """The driver's shard of the KV memory. Every change of it is sent to the workers, which change theirs."""

    def __init__(self, compiled: CompiledModel, workers: WorkerGroup) -> None:
        types = {value.name: value.type for value in compiled.step.graph.states}
        super().__init__(types, compiled.open_device, compiled.cache_spec.state_shapes)
        assert compiled.parallel is not None, "one of several ranks"
        shards = compiled.parallel.state_shards
        self._shardings = {
            name: _Sharding(tensor, shards.get(name), workers.size) for name, tensor in self.tensors.items()
        }
        self._workers = workers
        self._num_swap_areas = 0
        self._blocks_per_request = 0
        self._has_staging_states = False
        self.alloc_host_states(compiled.cache_spec.num_host_slots)

    def alloc_host_states(self, num_slots: int) -> None:
        """Allocate state slots in host memory on each rank, for its shard."""
        if num_slots:
            self._workers.broadcast("alloc_host_states", num_slots)
        super().alloc_host_states(num_slots)

    @property
    def block_types(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """By tensor, its dtype and the shape of one block, with the heads of all ranks."""
        return {name: (tensor.dtype.label, self._shardings[name].shape) for name, tensor in self.block_tensors.items()}

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy blocks, (source, destination) each, on all ranks."""
        pairs = list(copies)
        if pairs:
            self._workers.broadcast_move("copy_blocks", [list(pair) for pair in pairs])
            super().copy_blocks(pairs)

    def copy_states(self, copies: list[tuple[int, int]]) -> None:
        """Copy state slots, (source, destination) each, on all ranks, and clear the list."""
        if copies:
            self._workers.broadcast_move("copy_states", [list(pair) for pair in copies])
        super().copy_states(copies)

    @property
    def state_types(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """By tensor of recurrent states, its dtype and the shape of one sequence's, with the heads of all ranks."""
        return {name: (tensor.dtype.label, self._shardings[name].shape) for name, tensor in self.state_tensors.items()}

    def alloc_staging_states(self, num_slots: int, *, has_own_stream: bool = False) -> StagingBlocks:
        """Allocate a staging area in this process for `num_slots` states with the heads of all ranks."""
        if not self._has_staging_states:
            self._has_staging_states = True
            self._workers.broadcast_move("alloc_staging", "states", 1)
        local = super().alloc_staging_states(num_slots, has_own_stream=has_own_stream)
        shardings = {name: self._shardings[name] for name in self.state_tensors}
        return _GatheredBlocks(local, num_slots, shardings, self._workers, "states", 1)

    def swap_stream(self, num_blocks: int, on_moved: Callable[[int, float], None]) -> None:
        """Return None: with several ranks blocks are swapped between steps."""

    def alloc_swap_blocks(self, num_blocks: int) -> BlockMover:
        """Allocate host memory to swap `num_blocks` blocks to, on each rank for its shard."""
        self._workers.broadcast("alloc_swap_blocks", num_blocks)
        number, self._num_swap_areas = self._num_swap_areas, self._num_swap_areas + 1
        return _DriverSwapBlocks(super().alloc_staging_blocks(num_blocks), self._workers, number)

    def alloc_staging_blocks(self, num_blocks: int, *, has_own_stream: bool = False) -> StagingBlocks:
        """Allocate a staging area in this process for `num_blocks` blocks with the heads of all ranks."""
        if not self._blocks_per_request:
            block_bytes = sum(tensor.nbytes // tensor.shape[0] for tensor in self.block_tensors.values())
            self._blocks_per_request = max(1, _PIECE_BYTES // max(1, block_bytes))
            self._workers.broadcast_move("alloc_staging", "blocks", self._blocks_per_request)
        local = super().alloc_staging_blocks(num_blocks, has_own_stream=has_own_stream)
        shardings = {name: self._shardings[name] for name in self.block_tensors}
        return _GatheredBlocks(local, num_blocks, shardings, self._workers, "blocks", self._blocks_per_request)


class _Sharding:
    """How the heads of a tensor [num_blocks, …] or [num_slots, …] are divided among ranks along one axis, in bytes.

    If there are fewer heads than ranks, several ranks have the same heads.
    """

    def __init__(self, part: Tensor, shards: StateShards | None, num_ranks: int) -> None:
        """`part` is rank 0's shard; `shards` are None if every rank has all heads."""
        shape, itemsize = list(part.shape[1:]), part.dtype.itemsize
        if shards is None:
            shards = StateShards(-len(shape), (((0, shape[0]),),) * num_ranks)
        shape[shards.axis] = max(end for segments in shards.segments for _, end in segments)
        self.shape = tuple(shape)
        """The shape of one block with the heads of all ranks."""
        self.bytes_shape = (*shape[:-1], shape[-1] * itemsize)
        """`shape` in bytes: the last dim is multiplied by the size of an element."""
        axis_bytes = itemsize if shards.axis == -1 else 1
        in_bytes = [
            tuple((begin * axis_bytes, end * axis_bytes) for begin, end in segments) for segments in shards.segments
        ]
        self._shards = StateShards(shards.axis, tuple(in_bytes))

    @property
    def owner_ranks(self) -> list[int]:
        """The ranks that together hold all heads: the first of those with the same heads."""
        heads = self._shards.segments
        return [rank for rank in range(len(heads)) if not rank or heads[rank] != heads[rank - 1]]

    def take(self, whole: Any, rank: int, rows: list[int]) -> Any:
        """Return a rank's shard of some rows of `whole`, uint8 [rows, *bytes_shape]."""
        return self._shards.take(whole[rows], rank)

    def put(self, whole: Any, rank: int, data: Any, rows: list[int]) -> None:
        """Write `data`, a rank's shard of some rows, to `whole`."""
        shape = list(self.bytes_shape)
        shape[self._shards.axis] = sum(end - begin for begin, end in self._shards.segments[rank])
        self._shards.put(whole, rank, data.reshape(len(rows), *shape), rows)


class _DriverSwapBlocks:
    """Swapped blocks of all ranks; a `BlockMover`."""

    def __init__(self, local: BlockMover, workers: WorkerGroup, number: int) -> None:
        self._local = local
        self._workers = workers
        self._number = number

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy device `blocks` to `host_blocks`, one by one; done on rank 0 on return."""
        self._workers.broadcast_move("move_out", self._number, list(blocks), list(host_blocks))
        self._local.move_out(blocks, host_blocks)

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy `host_blocks` to device `blocks`, one by one; done on rank 0 on return."""
        self._workers.broadcast_move("move_in", self._number, list(host_blocks), list(blocks))
        self._local.move_in(host_blocks, blocks)


class _GatheredBlocks:
    """Staging blocks, or states, with the heads of all ranks; implements `StagingBlocks`."""

    def __init__(
        self,
        local: StagingBlocks,
        num_blocks: int,
        shardings: dict[str, _Sharding],
        workers: WorkerGroup,
        kind: str,
        blocks_per_request: int,
    ) -> None:
        """`local` is the staging area of rank 0's shard; the workers send `blocks_per_request` blocks at a time.

        `kind` is "blocks" or "states".
        """
        import numpy as np

        self._local = local
        self._shardings = shardings
        self._workers = workers
        self._kind = kind
        self._blocks_per_request = blocks_per_request
        self._whole = {
            name: np.zeros((num_blocks, *sharding.bytes_shape), np.uint8) for name, sharding in shardings.items()
        }
        self._contributing_ranks = {rank for sharding in shardings.values() for rank in sharding.owner_ranks if rank}

    def rows(self) -> dict[str, Any]:
        """Return the bytes of each tensor as a view, uint8 [num_blocks, bytes of a block]."""
        return {name: array.reshape(len(array), -1) for name, array in self._whole.items()}

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy device `blocks` to `host_blocks`, one by one; done on return."""
        import numpy as np

        self._local.move_out(blocks, host_blocks)
        for name, rows in self._local.rows().items():
            self._put(name, 0, list(host_blocks), rows[list(host_blocks)])
        for batch, host_batch in self._batches(blocks, host_blocks):
            for rank, parts in self._workers.read_blocks(self._kind, batch, self._contributing_ranks).items():
                for name, data in parts.items():
                    self._put(name, rank, host_batch, np.frombuffer(data, np.uint8))

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy `host_blocks` to device `blocks`, one by one; done on rank 0 on return."""
        for batch, host_batch in self._batches(blocks, host_blocks):
            parts = [
                {name: self._part(name, rank, host_batch).tobytes() for name in self._shardings}
                for rank in range(1, self._workers.size)
            ]
            self._workers.write_blocks(self._kind, batch, parts)
        for name, rows in self._local.rows().items():
            rows[list(host_blocks)] = self._part(name, 0, list(host_blocks)).reshape(len(host_blocks), -1)
        self._local.move_in(host_blocks, blocks)

    def _part(self, name: str, rank: int, host_blocks: list[int]) -> Any:
        return self._shardings[name].take(self._whole[name], rank, host_blocks)

    def _put(self, name: str, rank: int, host_blocks: list[int], data: Any) -> None:
        self._shardings[name].put(self._whole[name], rank, data, host_blocks)

    def _batches(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
        for begin in range(0, len(blocks), self._blocks_per_request):
            end = begin + self._blocks_per_request
            yield list(blocks[begin:end]), list(host_blocks[begin:end])


class MultiprocExecutor:
    """Runs a model on `tensor_parallel_size` ranks. If one of them ends, the next call is an EngineDeadError."""

    def __init__(self, compiled: CompiledModel) -> None:
        """Start the workers. InvalidArgumentError for one rank."""
        if compiled.parallel is None:
            raise InvalidArgumentError("The executor multiproc is for tensor_parallel_size 2 or more; leave it out.")
        self._compiled = compiled
        self._workers = WorkerGroup(compiled)
        self._is_on_host = compiled.open_device.backend.capabilities.is_host_accessible
        if self._is_on_host:
            compiled.parallel.kernels.connect(self._workers.communicator)
        self.kv_memory = DriverKVMemory(compiled, self._workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of ranks 1 and up."""
        return self._workers.pids

    def load(self, cache: KVCache, on_progress: Callable[[int, int], None] | None = None) -> ModelRunner:
        """Read the weights, each rank its part."""
        try:
            runner = _DriverRunner(self._workers, self._compiled, cache, self.kv_memory, on_progress)
            self._workers.barrier()
            if not self._is_on_host:
                self._join_collectives()
        except BaseException:
            self._workers.close()
            raise
        return runner

    def _join_collectives(self) -> None:
        """Create the communicator of the device's collectives on all ranks, after all have loaded."""
        backend, size = self._compiled.open_device.backend, self._compiled.config.tensor_parallel_size
        address = _free_address()
        self._workers.broadcast("join", address)
        if backend.communicator(0, size, address) is None:
            raise DeviceError(f"Devices {backend.name} have no collectives. Leave tensor_parallel_size out.")
        self._workers.barrier()

    def close(self) -> None:
        """End the workers and release the device."""
        self._workers.close()
        self._compiled.open_device.backend.close()


class _DriverRunner(ModelRunner):
    """The runner of the driver, whose graphs run on all ranks."""

    def __init__(self, workers: WorkerGroup, *arguments: Any) -> None:
        self._workers = workers
        super().__init__(*arguments)

    def open_executor(self, compiled: Compiled, key: GraphKey, stream: Stream) -> PlanExecutor:
        """Create the executor of a plan; the sampler runs on the driver alone."""
        if key.kind is GraphKind.SAMPLER:
            return super().open_executor(compiled, key, stream)
        tensors = self.kv_memory.tensors
        plan_arguments = (self._backend, self._device, self.constants, tensors, stream, self._ranges)
        return _DriverExecutor(self._workers, compiled, key, *plan_arguments)


class _DriverExecutor(PlanExecutor):
    """Runs a plan on all ranks."""

    def __init__(self, workers: WorkerGroup, compiled: Compiled, key: GraphKey, *arguments: Any) -> None:
        """Have the workers open the graph of `key`; `arguments` are those of `PlanExecutor` besides the plan."""
        super().__init__(compiled.plan, *arguments)
        self._workers = workers
        self._key = (key.has_embeddings, key.kind.value, key.has_adapters)
        self._worker_inputs = {value.name: value.type.shape for value in without_outputs(compiled.graph).inputs}
        workers.broadcast("open", *self._key)

    def run(self, symbols: tuple[int, ...], *more: Any) -> None:
        """Enqueue one run on all ranks over the current `host_inputs`."""
        assert not any(more), "workers do not have inputs from this rank's device memory"
        self._send_run(symbols)
        with self._workers.collective_run():
            super().run(symbols, *more)

    def run_with_late_input(self, symbols: tuple[int, ...], name: str, fill: Callable[[], None], *more: Any) -> None:
        """Call `fill`, then run, because the workers get all inputs before the run."""
        fill()
        self.run(symbols, *more)

    def run_capturing(self, symbols: tuple[int, ...], hook: CaptureHook, names: Container[str] | None = None) -> None:
        """Run and pass rank 0's values to the hook. An error of the hook is raised after the run."""
        raised: list[BaseException] = []

        def call(name: str, array: Any) -> None:
            try:
                if not raised:
                    hook(name, array)
            except BaseException as error:
                raised.append(error)

        self._send_run(symbols)
        with self._workers.collective_run():
            super().run_capturing(symbols, call, names)
        if raised:
            raise raised[0]

    def run_timed(self, symbols: tuple[int, ...]) -> list[float]:
        """Run on all ranks; the times are rank 0's."""
        self._send_run(symbols)
        with self._workers.collective_run():
            return super().run_timed(symbols)

    def _send_run(self, symbols: tuple[int, ...]) -> None:
        sizes = dict(zip(self.plan.symbols, symbols, strict=True))
        inputs = {
            name: self.host_inputs[name][: num_elements(resolve(shape, sizes))].tobytes()
            for name, shape in self._worker_inputs.items()
        }
        self._workers.broadcast("run", *self._key, list(symbols), inputs)


def _free_address() -> str:
    """Return an address of this machine with a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"
