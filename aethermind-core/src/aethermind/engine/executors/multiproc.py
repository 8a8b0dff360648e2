"""The executor of several ranks on one machine: tensor parallelism over processes (Shoeybi et al. 2019).

Rank 0 is the engine's own process. The others are told of every run of a graph, with the inputs that their part of it
reads, before rank 0 begins its own; between runs they are told of what moves blocks (see `led_memory`). So whatever the
engine computes, steps, scores, embeddings or shifted keys, is computed by all ranks, and neither the engine nor the
`ModelRunner` knows.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from aethermind.engine.executors.led_memory import LedMemory
from aethermind.engine.executors.ranks import Ranks
from aethermind.engine.loading.model_graph import GraphKey, Part
from aethermind.engine.steps.model_runner import ModelRunner
from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.graph.compile import Compiled
from aethermind.graph.executor import CaptureHook, Executor
from aethermind.graph.tensor_parallel import without_results
from aethermind.hal.layout import num_elements
from aethermind.ops.dims import resolve

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.loading.planned_model import PlannedModel

__all__ = ["MultiprocExecutor"]


class MultiprocExecutor:
    """`tensor_parallel_size` ranks. One of them that ends is an EngineDeadError of the next call."""

    def __init__(self, planned: PlannedModel) -> None:
        """Start the other ranks. InvalidArgumentError where there is only one."""
        if planned.parallel is None:
            raise InvalidArgumentError("The executor multiproc is for tensor_parallel_size 2 or more; leave it out.")
        self._planned = planned
        self._ranks = Ranks(planned)
        self._is_on_host = planned.open_device.backend.capabilities.is_host_accessible
        if self._is_on_host:
            planned.parallel.kernels.connect(self._ranks.communicator)
        self.kv_memory = LedMemory(planned, self._ranks)

    @property
    def pids(self) -> list[int]:
        """The processes of ranks 1 and up."""
        return self._ranks.pids

    def load(self, cache: KVCache, on_progress: Callable[[int, int], None] | None = None) -> ModelRunner:
        """Read the weights, each rank its own."""
        try:
            runner = _LedRunner(self._ranks, self._planned, cache, self.kv_memory, on_progress)
            self._ranks.meet()
            if not self._is_on_host:
                self._join()
        except BaseException:
            self._ranks.close()
            raise
        return runner

    def _join(self) -> None:
        """Bring the ranks together on devices with memory of their own, all of which have loaded."""
        backend, size = self._planned.open_device.backend, self._planned.config.tensor_parallel_size
        address = _free_address()
        self._ranks.tell("join", address)
        if backend.communicator(0, size, address) is None:
            raise DeviceError(f"Devices {backend.name} have no collectives. Leave tensor_parallel_size out.")
        self._ranks.meet()

    def close(self) -> None:
        """End the other ranks and give the device back."""
        self._ranks.close()
        self._planned.open_device.backend.close()


class _LedRunner(ModelRunner):
    """Rank 0's runner: the graphs that other ranks have a part in run on all of them."""

    def __init__(self, ranks: Ranks, *arguments: Any) -> None:
        self._ranks = ranks
        super().__init__(*arguments)

    def open_executor(self, compiled: Compiled, key: GraphKey) -> Executor:
        """What runs a plan; the sampler alone needs no other rank."""
        if key.part is Part.SAMPLER:
            return super().open_executor(compiled, key)
        return _LedExecutor(
            self._ranks, compiled, key, self._backend, self._device, self.constants, self.kv_memory.tensors
        )


class _LedExecutor(Executor):
    """A plan that the other ranks run as well."""

    def __init__(self, ranks: Ranks, compiled: Compiled, key: GraphKey, *rest: Any) -> None:
        """Have the other ranks prepare their part; `rest` is what there is to an `Executor` besides its plan."""
        super().__init__(compiled.plan, *rest)
        self._ranks = ranks
        self._key = (key.has_embeddings, key.part.value, key.has_adapters)
        self._shared = {value.name: value.type.shape for value in without_results(compiled.graph).inputs}
        ranks.tell("open", *self._key)

    def run(self, symbols: tuple[int, ...], *more: Any) -> None:
        """Enqueue one run, on all ranks, over what the host has written."""
        assert not any(more), "other ranks have not what is fed from this one's memory"
        self._announce(symbols)
        with self._ranks.together():
            super().run(symbols, *more)

    def run_filling(self, symbols: tuple[int, ...], name: str, fill: Callable[[], None], *more: Any) -> None:
        """Run after `fill`: the other ranks are told of runs, not of parts of them."""
        fill()
        self.run(symbols, *more)

    def run_capturing(self, symbols: tuple[int, ...], hook: CaptureHook, names: Container[str] | None = None) -> None:
        """Run and hand rank 0's values over. What a hook raises is raised when the run is over."""
        raised: list[BaseException] = []

        def call(name: str, array: Any) -> None:
            try:
                if not raised:
                    hook(name, array)
            except BaseException as error:
                raised.append(error)

        self._announce(symbols)
        with self._ranks.together():
            super().run_capturing(symbols, call, names)
        if raised:
            raise raised[0]

    def run_timed(self, symbols: tuple[int, ...]) -> list[float]:
        """Run on all ranks; the times are rank 0's."""
        self._announce(symbols)
        with self._ranks.together():
            return super().run_timed(symbols)

    def _announce(self, symbols: tuple[int, ...]) -> None:
        sizes = dict(zip(self.plan.symbols, symbols, strict=True))
        inputs = {
            name: self.host_inputs[name][: num_elements(resolve(shape, sizes))].tobytes()
            for name, shape in self._shared.items()
        }
        self._ranks.tell("run", *self._key, list(symbols), inputs)


def _free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"
