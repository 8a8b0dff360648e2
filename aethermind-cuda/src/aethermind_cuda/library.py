"""The compiled kernels of a device: found by compute capability, loaded lazily, with arguments packed once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from aethermind.errors import DeviceError
from aethermind_cuda.cublas import CublasLt, find_cublaslt
from aethermind_cuda.driver import Driver
from aethermind_cuda.launch import DeviceFacts, Enqueue, Launch, Relocate, TensorMap
from aethermind_cuda.nccl import NcclCommunicator
from aethermind_cuda.parameters import Parameters
from aethermind_cuda.relocation import find_operand, relocated_address
from aethermind_cuda.targets import best_target

__all__ = ["CUBINS", "Cubins", "KernelLibrary"]

CUBINS = Path(__file__).parent / "cubins"
_DEPENDENT_LAUNCH = 9, 0
"""The first compute capability with programmatic dependent launch."""
_DEFAULT_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that needs no opt-in."""

_MAX_ENCODED_MAPS = 1 << 14


class Cubins:
    """A folder of cubins and its manifest (see `build_kernels.py`)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or CUBINS

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What was built and by which compiler release; empty if nothing was built."""
        path = self.folder / "manifest.json"
        manifest: Mapping[str, Any] = json.loads(path.read_text()) if path.is_file() else {"operators": {}}
        return manifest

    @property
    def operators(self) -> Mapping[str, Any]:
        """The manifest's entries, by compiled module: a .cu source, or a Triton kernel of one dtype and head size."""
        operators: Mapping[str, Any] = self.manifest["operators"]
        return operators

    def unsupported_reason(self, capability: tuple[int, int]) -> str | None:
        """Why these kernels do not support a GPU, as a sentence; None if they do."""
        if not self.operators:
            return (
                "aethermind-cuda was installed without its compiled kernels. Run `make cuda-kernels` in the source "
                "tree, or install a built wheel."
            )
        targets = {target for operator in self.operators.values() for target in operator["targets"]}
        if best_target(targets, capability) is None:
            return (
                f"aethermind-cuda has kernels for compute capability {', '.join(sorted(targets, key=_target_number))}, "
                f"and none of them runs on {_dotted(capability)}. Build them from source with --targets "
                f"{capability[0]}{capability[1]}, or use another device."
            )
        return None

    def image(self, source: str, capability: tuple[int, int]) -> bytes:
        """The cubin of a source for a GPU; DeviceError where there is none."""
        operator = self.operators.get(source)
        target = None if operator is None else best_target(operator["targets"], capability)
        if operator is None or target is None:
            reason = self.unsupported_reason(capability) or f"it was built without {source} for {_dotted(capability)}."
            raise DeviceError(f"The CUDA kernels of {source} cannot be loaded: {reason}")
        image: bytes = (self.folder / operator["targets"][target]["file"]).read_bytes()
        return image


class KernelLibrary:
    """The kernels of one device, whose context must be current; implements `launch.LaunchBinder`."""

    def __init__(self, driver: Driver, facts: DeviceFacts, cubins: Cubins | None = None) -> None:
        self._driver = driver
        self.facts = facts._replace(max_clusters=self.max_clusters)
        self._cubins = cubins or Cubins()
        self._modules: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._shared_limits: dict[int, int] = {}
        self._max_clusters: dict[tuple[Any, ...], int] = {}
        self._encoded_maps: dict[TensorMap, bytes] = {}
        self.communicator: NcclCommunicator | None = None
        """The communicator, once the ranks have connected."""

    @cached_property
    def cublas(self) -> CublasLt:
        """cuBLASLt on this device; DeviceError where it is not installed."""
        library = find_cublaslt()
        if library is None:
            raise DeviceError("cuBLASLt is not installed: run `pip install nvidia-cublas`.")
        return CublasLt(library)

    @property
    def collectives(self) -> NcclCommunicator:
        """The communicator; DeviceError before the ranks have connected."""
        if self.communicator is None:
            raise DeviceError("The ranks are not connected: call the backend's `communicator` first.")
        return self.communicator

    def abort_communicator(self) -> None:
        """Abort the communicator, so that nothing waits for other ranks."""
        communicator, self.communicator = self.communicator, None
        if communicator is not None:
            communicator.close()

    def function(self, source: str, kernel: str) -> int:
        """The driver's handle of an entry point."""
        key = source, kernel
        if key not in self._functions:
            if source not in self._modules:
                image = self._cubins.image(source, self.facts.compute_capability)
                self._modules[source] = self._driver.module_load(image)
            self._functions[key] = self._driver.get_function(self._modules[source], kernel)
        return self._functions[key]

    def max_clusters(self, launch: Launch) -> int:
        """How many clusters of a launch's kernel (of its `__cluster_dims__`) run at once.

        They are fewer than the multiprocessors would hold: a cluster runs on one GPC, and GPCs differ in size.
        """
        function, block, shared_bytes = self.function(launch.source, launch.kernel), launch.block, launch.shared_bytes
        key = function, block, shared_bytes
        if key not in self._max_clusters:
            self._allow_shared(function, launch)
            self._max_clusters[key] = self._driver.max_active_clusters(function, launch.grid, block, shared_bytes)
        return self._max_clusters[key]

    def bind_launch(self, launch: Launch) -> Enqueue:
        """Bind a launch; DeviceError for more shared memory than a block can have."""
        if not all(launch.grid):
            return _enqueue_nothing
        parameters = Parameters(launch.arguments)
        if parameters.maps:
            parameters = parameters.relocated((), [(offset, self._encoded(one)) for offset, one in parameters.maps])
        return self._launcher(launch)(parameters)

    def bind_relocatable(self, launch: Launch) -> Relocate | None:
        """Bind a launch with symbolic addresses: arguments are packed once, and copied with other pointers."""
        if not all(launch.grid):
            return lambda _: _enqueue_nothing
        template = Parameters(launch.arguments)
        pointers = template.pointers()
        if pointers is None:
            return None
        decoded = [(offset, find_operand(pointer)) for offset, pointer in pointers]
        relocations = [(offset, *operand) for offset, operand in decoded if operand is not None]
        bind, maps = self._launcher(launch), template.maps

        def relocate(bases: Sequence[int]) -> Enqueue:
            encoded = [
                (offset, self._encoded(one._replace(address=relocated_address(one.address, bases))))
                for offset, one in maps
            ]
            pointers = [(offset, bases[index] + addend) for offset, index, addend in relocations]
            return bind(template.relocated(pointers, encoded))

        return relocate

    def _encoded(self, one: TensorMap) -> bytes:
        """The driver's form of a tensor map; those of weights are needed again for every number of tokens."""
        if one not in self._encoded_maps:
            if len(self._encoded_maps) == _MAX_ENCODED_MAPS:
                self._encoded_maps.clear()
            self._encoded_maps[one] = self._driver.encode_tensor_map(*one)
        return self._encoded_maps[one]

    def _launcher(self, launch: Launch) -> Callable[[Parameters], Enqueue]:
        """Bind everything of a launch except its arguments."""
        function = self.function(launch.source, launch.kernel)
        self._allow_shared(function, launch)
        launch_kernel = self._driver.launch_kernel
        grid, block, shared_bytes = launch.grid, launch.block, launch.shared_bytes
        is_dependent_launch = launch.is_dependent_launch and self.facts.compute_capability >= _DEPENDENT_LAUNCH

        def bind(parameters: Parameters) -> Enqueue:
            def enqueue(stream: int) -> None:
                launch_kernel(function, grid, block, shared_bytes, stream, parameters.address, is_dependent_launch)

            return enqueue

        return bind

    def close(self) -> None:
        """Close cuBLASLt and unload all modules."""
        if "cublas" in self.__dict__:
            self.cublas.close()
        for module in self._modules.values():
            self._driver.module_unload(module)
        self._modules.clear()
        self._functions.clear()

    def _allow_shared(self, function: int, launch: Launch) -> None:
        requested, limit = launch.shared_bytes, self.facts.shared_bytes
        if requested > limit:
            raise DeviceError(
                f"The CUDA kernel {launch.kernel} needs {requested} bytes of shared memory, and a block of this GPU "
                f"can have {limit}."
            )
        if requested > self._shared_limits.get(function, _DEFAULT_SHARED_BYTES):
            self._driver.set_dynamic_shared_limit(function, requested)
            self._shared_limits[function] = requested


def _enqueue_nothing(_: int) -> None:
    """The `Enqueue` of a launch with an empty grid, which launches nothing."""


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _target_number(target: str) -> tuple[int, str]:
    return int(target.rstrip("af")), target
