"""Operators of the CUDA backend on tensors of torch: called, timed, and compared, with nothing in between.

torch and the backend share the device's primary context, so an address of one is an address of the other. Everything
here also runs with torch on the host over a libcuda whose device memory is the host's, which is how it is rehearsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import torch

from aethermind import Runtime
from aethermind.dispatch import Kernel, Signature
from aethermind.hal import DType, Tensor
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import DENSE
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.driver import Driver
from aethermind_cuda.launch import Call, DeviceArray

__all__ = ["Gpu", "error_of"]

Enqueue = Callable[[int], None]

_DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.float8_e4m3fn: DType.FLOAT8_E4M3FN,
}
_TIMED_S = 0.02
_SAMPLES = 7
_MAX_CALLS = 64


@dataclass(frozen=True)
class Gpu:
    """The first GPU, by the backend and by torch."""

    runtime: Runtime
    backend: CudaBackend

    @classmethod
    def open(cls) -> Gpu:
        """Everything in this tree, on the first GPU."""
        runtime = Runtime.boot()
        backend = runtime.open_device("cuda").backend
        assert isinstance(backend, CudaBackend)
        return cls(runtime, backend)

    @cached_property
    def device(self) -> torch.device:
        """Where torch's tensors are."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def stream(self) -> int:
        """The driver's handle of the stream that everything is enqueued on."""
        return self.backend.streams.default(0).handle

    @property
    def driver(self) -> Driver:
        return self.backend._driver

    def kernel(
        self,
        operator: str,
        inputs: Sequence[torch.Tensor | None],
        attributes: Mapping[str, Any] | None = None,
        format: str = DENSE,
    ) -> Kernel:
        """The kernel that a plan would choose; `format` is that of the weights. F is the dtype of the first input."""
        first = inputs[0]
        assert first is not None
        completed = self.runtime.operators[operator].schema.complete(attributes or {})
        inputs = self._with_absent(operator, inputs)
        types = tuple(
            None if tensor is None else TensorType(_DTYPES[tensor.dtype], tuple(tensor.shape)) for tensor in inputs
        )
        dtype = _DTYPES[first.dtype]
        additions = self.runtime.operators[operator].used_additions(types, completed)
        signature = Signature(operator, "cuda", dtype, types, completed, format, additions=additions)
        found = [
            kernel
            for kernel in self.runtime.kernels.kernels("cuda")
            if kernel.operator == operator
            and dtype in kernel.dtypes
            and (kernel.weight_formats is None or format in kernel.weight_formats)
            and kernel.reason_against(signature) is None
        ]
        return max(found, key=lambda kernel: kernel.priority)

    def bind(
        self,
        operator: str,
        inputs: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor],
        attributes: Mapping[str, Any] | None = None,
        format: str = DENSE,
    ) -> Enqueue:
        """A function that enqueues one call and keeps its tensors alive."""
        inputs = self._with_absent(operator, inputs)
        kernel = self.kernel(operator, inputs, attributes, format)
        self.backend.devices.enter(0)
        function: Any = kernel.function
        library = self.backend._library(0)
        called = self.runtime.operators[operator]
        arrays = tuple(None if tensor is None else _array(tensor) for tensor in inputs)
        arguments = kernel.arguments(arrays, called.schema.complete(attributes or {}), called.additions)
        call = Call(arguments[0], tuple(map(_array, outputs)), arguments[1], library.facts)
        workspace = torch.empty(max(1, function.workspace_bytes(call)), dtype=torch.uint8, device=self.device)
        works = [work.bind(library) for work in function(call._replace(workspace=workspace.data_ptr()))]

        def enqueue(stream: int) -> None:
            _ = inputs, outputs, workspace
            for work in works:
                work(stream)

        return enqueue

    def _with_absent(self, operator: str, inputs: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        """Inputs followed by None for each that a caller leaves out at the end."""
        return (*inputs, *[None] * (len(self.runtime.operators[operator].schema.inputs) - len(inputs)))

    def run(self, enqueue: Enqueue) -> None:
        """Once, and wait for it. What torch was asked before is there."""
        self.wait_for_torch()
        self.backend.devices.enter(0)
        enqueue(self.stream)
        self.driver.stream_synchronize(self.stream)

    def seconds(self, calls: Sequence[Enqueue]) -> float:
        """The device's time for a call, the median of some runs over all `calls` in one graph.

        Pass as many calls over different memory as the L2 cache does not hold at once.
        """
        self.wait_for_torch()
        self.backend.devices.enter(0)
        for enqueue in calls:
            enqueue(self.stream)
        driver, stream = self.driver, self.stream
        driver.stream_synchronize(stream)
        driver.begin_capture(stream)
        for enqueue in calls:
            enqueue(stream)
        graph = driver.graph_instantiate(driver.end_capture(stream))
        begin, end = driver.event_create(True), driver.event_create(True)
        try:
            once = self._elapsed(graph, 1, begin, end)
            repeat = max(1, min(_MAX_CALLS, int(_TIMED_S / max(once, 1e-7) / _SAMPLES)))
            times = [self._elapsed(graph, repeat, begin, end) / repeat for _ in range(_SAMPLES)]
        finally:
            driver.event_destroy(begin)
            driver.event_destroy(end)
            driver.graph_exec_destroy(graph)
        return median(times) / len(calls)

    def torch_seconds(self, calls: Sequence[Callable[[], object]]) -> float | None:
        """The same of calls of torch; None where it has no GPU."""
        if not torch.cuda.is_available():
            return None
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def elapsed(repeat: int) -> float:
            begin.record()
            for _ in range(repeat):
                graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        once = elapsed(1)
        repeat = max(1, min(_MAX_CALLS, int(_TIMED_S / max(once, 1e-7) / _SAMPLES)))
        return median(elapsed(repeat) / repeat for _ in range(_SAMPLES)) / len(calls)

    def pack(self, format: str, weight: torch.Tensor, operator: str = "linear") -> torch.Tensor:
        """A weight [N, K] of bfloat16 in a format, packed by the device as an operator wants it."""
        known = (
            kernel
            for kernel in self.runtime.kernels.kernels("cuda")
            if kernel.operator == operator and format in (kernel.weight_formats or ())
        )
        pack = next(iter(max(known, key=lambda kernel: kernel.priority).packs.values()))
        array = weight.cpu().view(torch.int16).numpy().view(DType.BFLOAT16.numpy)
        nbytes = pack.nbytes(tuple(weight.shape), DType.BFLOAT16)
        buffer = self.backend.allocator.alloc(nbytes)
        destination = Tensor.of(buffer, DType.UINT8, (nbytes,))
        assert pack.pack_on_device is not None
        pack.pack_on_device(self.backend, array, destination)
        packed = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        self.run(lambda stream: self.driver.copy(packed.data_ptr(), buffer.address, nbytes, stream))
        return packed

    @staticmethod
    def wait_for_torch() -> None:
        """Our streams are in step with none of torch's."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _elapsed(self, graph: int, repeat: int, begin: int, end: int) -> float:
        driver, stream = self.driver, self.stream
        driver.event_record(begin, stream)
        for _ in range(repeat):
            driver.graph_launch(graph, stream)
        driver.event_record(end, stream)
        driver.event_synchronize(end)
        return driver.event_elapsed(begin, end) / 1e3


def error_of(out: torch.Tensor, reference: torch.Tensor) -> float:
    """‖out − reference‖ / ‖reference‖ in float32; infinite where a number is none."""
    difference = torch.linalg.vector_norm(out.float() - reference.float())
    error = float(difference / torch.linalg.vector_norm(reference.float()).clamp_min(1e-30))
    return error if error == error else float("inf")


def _array(tensor: torch.Tensor) -> DeviceArray:
    assert tensor.is_contiguous()
    return DeviceArray(tensor.data_ptr(), _DTYPES[tensor.dtype], tuple(tensor.shape))
