"""Every call of `CudaDriver`, through NVIDIA's bindings, to the libcuda that is found: run beside the stub."""

from __future__ import annotations

import ctypes
import inspect

import pytest

from aethermind_cuda.cuda_bindings_driver import CudaDriver, load_driver
from aethermind_cuda.driver import NO_BINARY, OUT_OF_MEMORY, CudaError
from aethermind_cuda.parameters import Parameters

__all__: list[str] = []

driver = load_driver()
called: set[str] = set()


class Watched:
    """The driver, and which of its calls were made."""

    def __getattr__(self, name: str) -> object:
        called.add(name)
        return getattr(driver, name)


cuda = Watched()

# Devices
assert (cuda.version(), cuda.device_count(), cuda.device_name(0)) == ((13, 2), 1, "stub")
assert (cuda.device_memory(0), cuda.device_attribute(0, 97)) == (24 << 30, 97)
with pytest.raises(CudaError, match=r"cuDeviceGet failed: something \(CUDA_ERROR_SOMETHING, 101\)"):
    cuda.device_name(1)
context = cuda.retain_context(0)
cuda.set_context(context)
cuda.synchronize_context()
assert not cuda.can_access_peer(0, 0)
cuda.enable_peer_access(context)

# Streams and events
assert cuda.stream_priority_range() == (0, -5)
stream = cuda.stream_create(-3)
assert (cuda.stream_query(stream), cuda.stream_query(stream)) == (False, True)
event = cuda.event_create(True)
assert cuda.event_create(False) == event
cuda.event_record(event, stream)
cuda.stream_wait_event(stream, event)
cuda.event_synchronize(event)
cuda.stream_synchronize(stream)
assert not cuda.event_query(event)
assert cuda.event_elapsed(event, event) == 1.5

# Memory
assert cuda.memory_info() == (23 << 30, 24 << 30)
with pytest.raises(CudaError, match="Lower --num-kv-blocks") as caught:
    cuda.mem_alloc(2 << 30)
assert caught.value.code == OUT_OF_MEMORY
device, host = cuda.mem_alloc(64), cuda.host_alloc(64)
cuda.fill(device, 0xAB, 64, stream)
cuda.copy(host, device, 64, stream)
assert ctypes.string_at(host, 64) == b"\xab" * 64

# Kernels
with pytest.raises(CudaError) as caught:
    cuda.module_load(b"ptx\0")
assert caught.value.code == NO_BINARY
module = cuda.module_load(b"cubin\0")
function = cuda.get_function(module, "store")
cuda.set_dynamic_shared_limit(function, 100000)
assert cuda.max_active_clusters(function, (4, 1, 1), (160, 1, 1), 100000) == 30
parameters = Parameters([ctypes.c_void_p(host), 42])
cuda.begin_capture(stream)
cuda.launch_kernel(function, (1, 2, 3), (32, 1, 1), 64, stream, parameters.address)
assert ctypes.c_int.from_address(host).value == 42
again = Parameters([ctypes.c_void_p(host), 43])
cuda.launch_kernel(function, (1, 2, 3), (32, 1, 1), 64, stream, again.address, is_dependent_launch=True)
assert ctypes.c_int.from_address(host).value == 43
assert cuda.encode_tensor_map(1 << 20, 300, 128, 56) == bytes(range(128))

# Graphs
executable = cuda.graph_instantiate(cuda.end_capture(stream))
cuda.graph_launch(executable, stream)

cuda.graph_exec_destroy(executable)
cuda.module_unload(module)
cuda.mem_free(device)
cuda.host_free(host)
cuda.event_destroy(event)
cuda.stream_destroy(stream)
cuda.release_context(0)
every = {name for name, _ in inspect.getmembers(CudaDriver, inspect.isfunction) if not name.startswith("_")}
assert called == every, every - called
print(f"{len(every)} calls")
