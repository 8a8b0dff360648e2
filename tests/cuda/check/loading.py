"""The first things that can go wrong: cubins are loaded, entry points found; one kernel, one copy, products."""

from __future__ import annotations

import sys

import numpy as np
from tests.cuda.check.records import CaseLog

from aethermind import Runtime
from aethermind.hal import DeviceId, DType, Tensor
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.launch import Call, DeviceArray
from aethermind_cuda.library import Cubins
from aethermind_cuda.targets import best_target

__all__: list[str] = []


def load_cubins(backend: CudaBackend) -> int:
    """Load everything that was built for this GPU; the number of entry points."""
    backend.devices.enter(0)
    driver, capability = backend._driver, backend.devices.facts(0).compute_capability
    cubins, count = Cubins(), 0
    for source, operator in cubins.operators.items():
        if best_target(operator["targets"], capability) is None:
            continue
        module = driver.module_load(cubins.image(source, capability))
        for name in sorted({name for built in operator["targets"].values() for name in built["kernels"]}):
            driver.get_function(module, name)
            count += 1
        driver.module_unload(module)
    return count


def add(backend: CudaBackend) -> None:
    """One launch of the simplest kernel, and the sum that it should give."""
    values = [np.arange(1000, dtype=np.float32), np.full(1000, 0.5, np.float32)]
    tensors = [Tensor.of(backend.allocator.alloc(4000), DType.FLOAT32, (1000,)) for _ in range(3)]
    device = DeviceId("cuda", 0)
    for tensor, array in zip(tensors, values, strict=False):
        backend.transfer.copy(tensor, Tensor.of_numpy(array, device))
    out, x, y = (DeviceArray(tensor.address, DType.FLOAT32, (1000,)) for tensor in (tensors[2], *tensors[:2]))
    kernels = Runtime.boot().kernels.kernels("cuda")
    function = next(kernel.function for kernel in kernels if kernel.operator == "add")
    assert function is not None
    stream = backend.streams.default(0)
    backend.enqueue(function(Call((x, y), (out,), {}, backend.devices.facts(0))), stream)
    stream.synchronize()
    back = np.zeros(1000, np.float32)
    backend.transfer.copy(Tensor.of_numpy(back, device), tensors[2])
    np.testing.assert_array_equal(back, values[0] + values[1])


def main() -> int:
    """Record each."""
    log = CaseLog.of_environment("loading")
    backend = Runtime.boot().open_device("cuda").backend
    assert isinstance(backend, CudaBackend)
    with log.case("every entry point") as facts:
        facts["entry points"] = load_cubins(backend)
    with log.case("one kernel"):
        add(backend)
    with log.case("copy and products") as facts:
        limits = backend.measure_limits([DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32])
        facts["copy GB/s"] = round(limits.memory_bytes_per_s / 1e9)
        for name, rate in limits.flops_per_s.items():
            facts[f"{name} TFLOP/s"] = round(rate / 1e12)
    return 1 if log.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
