"""Arguments as kernels read them, the cubin that fits a GPU, and what a plan launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind import Runtime
from aethermind.dispatch import Dispatcher
from aethermind.errors import DeviceError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.graph.executor import PlanExecutor
from aethermind.hal import DeviceId, DType
from aethermind.ops.dims import SymDim
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.kernels import load_kernels
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Int64, Launch
from aethermind_cuda.library import Cubins, KernelLibrary
from aethermind_cuda.parameters import Parameters
from aethermind_cuda.targets import best_target, runs_on

A100 = DeviceFacts((8, 0), 108, 163 << 10)


class Strides(ctypes.Structure):
    _fields_ = (("rows", ctypes.c_int64), ("columns", ctypes.c_int32))


def launched_by(driver: HostDriver, folder: Path, launch: Launch) -> Callable[[int], None]:
    """Launch it; what comes back keeps its arguments."""
    library = KernelLibrary(driver, A100, fake_cubins(folder, ["thing"]))
    enqueue = launch.bind(library)
    enqueue(driver.stream_create(0))
    return enqueue


def test_every_argument_lies_where_its_pointer_says(tmp_path: Path) -> None:
    driver = HostDriver()
    array = DeviceArray(0x7F00_0000_1234, DType.FLOAT16, (3, 4))
    arguments = (array, None, -7, 2.5, Int64(1 << 40), Strides(1 << 33, 5), True)
    launch = Launch("thing", "thing_float16", (1, 2, 3), (32, 1, 1), arguments, 1024)
    enqueue = launched_by(driver, tmp_path, launch)
    (launched,) = driver.launches
    assert enqueue is not None
    assert launched[:4] == ("thing:thing_float16", (1, 2, 3), (32, 1, 1), 1024)
    assert launched.argument(0, ctypes.c_uint64) == array.address
    assert launched.argument(1, ctypes.c_uint64) == 0
    assert launched.argument(2, ctypes.c_int32) == -7
    assert launched.argument(3, ctypes.c_float) == 2.5
    assert launched.argument(4, ctypes.c_int64) == 1 << 40
    pointers = ctypes.cast(launched.parameters, ctypes.POINTER(ctypes.c_void_p))
    assert Strides.from_address(pointers[5]).rows == 1 << 33
    assert Strides.from_address(pointers[5]).columns == 5
    assert launched.argument(6, ctypes.c_int32) == 1


@pytest.mark.parametrize(
    ("argument", "error"), [(1 << 31, OverflowError), ("text", TypeError), (np.int32(3), TypeError)]
)
def test_unsupported_arguments_are_refused(argument: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        Parameters([argument])


def test_a_grid_without_blocks_launches_nothing(tmp_path: Path) -> None:
    driver = HostDriver()
    launched_by(driver, tmp_path, Launch("thing", "thing_float32", (0, 1, 1), (32, 1, 1), ()))
    assert (driver.launches, driver.calls["module_load"]) == ([], 0)


def test_shared_memory_beyond_48_kib_is_asked_for_and_beyond_the_gpus_refused(tmp_path: Path) -> None:
    driver = HostDriver()
    launched_by(driver, tmp_path, Launch("thing", "small", (1, 1, 1), (32, 1, 1), (), 48 << 10))
    assert driver.shared_limits == {}
    launched_by(driver, tmp_path, Launch("thing", "large", (1, 1, 1), (32, 1, 1), (), 100 << 10))
    assert list(driver.shared_limits.values()) == [100 << 10]
    with pytest.raises(DeviceError, match="needs 204800 bytes of shared memory, and a block of this GPU can"):
        launched_by(driver, tmp_path, Launch("thing", "huge", (1, 1, 1), (32, 1, 1), (), 200 << 10))


def test_modules_and_functions_are_loaded_once(tmp_path: Path) -> None:
    driver = HostDriver()
    library = KernelLibrary(driver, A100, fake_cubins(tmp_path, ["thing", "other"]))
    assert library.function("thing", "a") == library.function("thing", "a") != library.function("thing", "b")
    assert (driver.calls["module_load"], driver.calls["get_function"]) == (1, 2)


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("80", (8, 0), True),
        ("80", (8, 9), True),
        ("86", (8, 0), False),
        ("80", (9, 0), False),
        ("80", (8, 7), False),
        ("86", (8, 7), False),
        ("90a", (9, 0), True),
        ("90a", (10, 0), False),
        ("100a", (10, 3), False),
        ("100f", (10, 3), True),
        ("100f", (12, 0), False),
        ("120", (12, 1), True),
        ("110", (11, 0), True),
    ],
)
def test_binary_compatibility(target: str, capability: tuple[int, int], runs: bool) -> None:
    assert runs_on(target, capability) is runs


def test_the_nearest_target_is_chosen() -> None:
    targets = ("80", "86", "89", "90", "90a", "100f", "120")
    chosen = {capability: best_target(targets, capability) for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 3))}
    assert list(chosen.values()) == ["80", "86", "89", "90a", "100f"]
    assert best_target(targets, (7, 5)) is None


def test_a_gpu_without_compatible_cubin_is_reported(tmp_path: Path) -> None:
    library = KernelLibrary(HostDriver(), A100._replace(compute_capability=(7, 5)), fake_cubins(tmp_path, ["thing"]))
    with pytest.raises(DeviceError) as caught:
        library.function("thing", "thing_float32")
    assert str(caught.value) == (
        "The CUDA kernels of thing cannot be loaded: aethermind-cuda has kernels for compute capability 80, and none "
        "of them runs on 7.5. Build them from source with --targets 75, or use another device."
    )
    with pytest.raises(DeviceError, match=r"without its compiled kernels\. Run `make cuda-kernels`"):
        KernelLibrary(HostDriver(), A100, Cubins(tmp_path / "nowhere")).function("thing", "thing_float32")


def test_a_plan_launches_its_steps_with_the_sizes_of_the_run(runtime: Runtime, tmp_path: Path) -> None:
    driver = HostDriver()
    backend = CudaBackend(driver, fake_cubins(tmp_path, ["embedding", "rms_norm"]))
    builder = GraphBuilder("small", runtime.operators, DType.BFLOAT16)
    token_ids = builder.input("token_ids", DType.INT32, (SymDim("T"),))
    table = builder.parameter("table", (11, 24), DType.BFLOAT16)
    rows = builder.op("embedding", token_ids, table)
    builder.output("out", builder.op("rms_norm", rows, builder.parameter("weight", (24,), DType.BFLOAT16), eps=1e-5))
    graph = builder.finish()
    compiled = compile_graph(graph, runtime.operators, Dispatcher(load_kernels()), "cuda", {"T": 8})
    weights = {"table": np.ones((11, 24), DType.BFLOAT16.numpy), "weight": np.ones(24, DType.BFLOAT16.numpy)}
    device = DeviceId("cuda", 0)
    constants = ConstantStore(
        backend, device, lambda name, _: weights[name], {v.name: v.type for v in graph.parameters}
    )
    constants.load(compiled.plan)
    executor = PlanExecutor(compiled.plan, backend, device, constants, {})
    executor.host_inputs["token_ids"][:3] = [1, 2, 3]
    before = backend.transfer.stats()
    executor.run((3,))
    executor.synchronize()
    assert [(launched.function, launched.grid) for launched in driver.launches] == [
        ("embedding:embedding_bfloat16", (3, 1, 1)),
        ("rms_norm:rms_norm_bfloat16", (3, 1, 1)),
    ]
    embedding, norm = driver.launches
    assert embedding.argument(0, ctypes.c_uint64) == norm.argument(1, ctypes.c_uint64)
    assert (embedding.argument(3, ctypes.c_int32), norm.argument(3, ctypes.c_int32)) == (11, 24)
    assert norm.argument(4, ctypes.c_float) == pytest.approx(1e-5)
    after = backend.transfer.stats()
    assert after.host_to_device_bytes - before.host_to_device_bytes == 3 * 4
