"""Ranks that meet by NCCL, in threads over a library that computes, in host memory, what it was asked for."""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.architecture.sources import ROOT
from tests.cuda.emulated_launches import launch_all
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind import Runtime
from aethermind.dispatch import Kernel
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_weights import open_constants
from aethermind.errors import DeviceError, KernelNotFoundError
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.tensor_parallel import Share
from aethermind.hal import DeviceId, DType, Probe, Tensor
from aethermind.hal.communicator import Communicator
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.kernels import load_kernels
from aethermind_cuda.kernels.collectives import AllGather, AllReduce
from aethermind_cuda.launch import DeviceArray
from aethermind_cuda.nccl import NcclCommunicator

TYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.int8),
    6: np.dtype(np.float16),
    7: np.dtype(np.float32),
    9: DType.BFLOAT16.numpy,
}
STREAM = 77
WAIT_S = 20.0


class FakeNccl:
    """Ranks are threads; a collective that all have called is computed by the first that needs it. A handle is the
    rank, counted from 1.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.ids: set[bytes] = set()
        self.handles: set[int] = set()
        self.streams: set[int] = set()
        self.given: dict[int, Any] = {}
        self.calls: list[str] = []
        self.status = 0
        self._meeting = threading.Barrier(size)
        self._local = threading.local()

    def ncclGetErrorString(self, status: int) -> bytes:  # noqa: N802
        return f"words for {status}".encode()

    def ncclGetUniqueId(self, unique: Any) -> int:  # noqa: N802
        ctypes.memmove(unique, bytes(range(100, 228)), 128)
        return self.status

    def ncclCommInitRank(self, handle: Any, size: int, unique: Any, rank: int) -> int:  # noqa: N802
        assert size == self.size
        self.ids.add(bytes(unique))
        self.handles.add(rank + 1)
        handle._obj.value = rank + 1
        self._meeting.wait(WAIT_S)
        return 0

    def ncclCommAbort(self, handle: Any) -> int:  # noqa: N802
        self.handles.remove(handle.value)
        return 0

    def ncclGroupStart(self) -> int:  # noqa: N802
        self._local.is_grouped = True
        return 0

    def ncclGroupEnd(self) -> int:  # noqa: N802
        self._local.is_grouped = False
        return 0

    def ncclAllReduce(self, *arguments: Any) -> int:  # noqa: N802
        source, target, count, type_, operation, handle, stream = arguments
        assert operation == 0
        values = memory(source, count, type_)
        everyone = self._exchange("all_reduce", handle, stream, values.copy())
        memory(target, count, type_)[...] = sum(one.astype(np.float32) for one in everyone)
        return 0

    def ncclAllGather(self, *arguments: Any) -> int:  # noqa: N802
        source, target, count, type_, handle, stream = arguments
        everyone = self._exchange("all_gather", handle, stream, memory(source, count, type_).copy())
        memory(target, ctypes.c_size_t(count.value * self.size), type_)[...] = np.concatenate(everyone)
        return 0

    def ncclBroadcast(self, *arguments: Any) -> int:  # noqa: N802
        source, target, count, type_, root, handle, stream = arguments
        is_root = handle.value == root + 1
        own = memory(source, count, type_).copy() if is_root else np.zeros(count.value, TYPES[type_])
        everyone = self._exchange("broadcast", handle, stream, own)
        memory(target, count, type_)[...] = everyone[root]
        return 0

    def _exchange(self, name: str, handle: Any, stream: Any, values: Any) -> list[Any]:
        self.given[handle.value] = values
        self.streams.add(stream.value)
        if handle.value == 1:
            self.calls.append(name + (" in a group" if getattr(self._local, "is_grouped", False) else ""))
        self._meeting.wait(WAIT_S)
        everyone = [self.given[one + 1] for one in range(self.size)]
        self._meeting.wait(WAIT_S)
        return everyone


def memory(address: Any, count: Any, type_: int) -> Any:
    dtype = TYPES[type_]
    return np.ctypeslib.as_array((ctypes.c_uint8 * (count.value * dtype.itemsize)).from_address(address.value)).view(
        dtype
    )


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def on_ranks(size: int, run: Callable[[NcclCommunicator], Any]) -> tuple[FakeNccl, list[Any]]:
    """What `run` returns on each of several ranks that have met."""
    library, address = FakeNccl(size), free_address()
    nothing: Any = None

    def of_rank(rank: int) -> Any:
        communicator = NcclCommunicator(library, rank, size, address if size > 1 else None, nothing, nothing)
        try:
            return run(communicator)
        finally:
            communicator.close()

    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(of_rank, range(size)))
    assert library.ids == {bytes(range(100, 228))}, "all meet under one id"
    assert library.handles == set()
    return library, found


def on_device(array: np.ndarray[Any, Any]) -> DeviceArray:
    """An array as if it were in device memory."""
    return DeviceArray(array.ctypes.data, DType.of_numpy(array.dtype), array.shape)


def values_of(rank: int, shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(-8, 9, shape).astype(dtype.numpy)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize("is_in_place", [False, True])
def test_sums_are_those_of_all_ranks(size: int, dtype: DType, is_in_place: bool) -> None:
    def run(ranks: NcclCommunicator) -> np.ndarray[Any, Any]:
        x = values_of(ranks.rank, (3, 5), dtype)
        out = x if is_in_place else np.zeros_like(x)
        AllReduce(on_device(out), on_device(x)).bind(Ranks(ranks))(STREAM)
        return out

    library, found = on_ranks(size, run)
    expected = sum(values_of(rank, (3, 5), dtype).astype(np.float32) for rank in range(size))
    for out in found:
        np.testing.assert_array_equal(out.astype(np.float32), expected)
    assert library.streams == {STREAM}


@pytest.mark.parametrize(("size", "length", "calls"), [
    (2, 6, ["all_gather"]), (3, 7, ["broadcast in a group"] * 3), (3, 2, ["broadcast in a group"] * 2),
    (1, 4, ["all_gather"]), (2, 0, []),
])  # fmt: skip
def test_parts_are_gathered_in_rank_order(size: int, length: int, calls: list[str]) -> None:
    whole = values_of(9, (length, 5), DType.BFLOAT16)

    def run(ranks: NcclCommunicator) -> np.ndarray[Any, Any]:
        begin, end = ranks.share.part(length)
        out = np.zeros_like(whole)
        AllGather(on_device(out), on_device(whole[begin:end])).bind(Ranks(ranks))(STREAM)
        return out

    library, found = on_ranks(size, run)
    for out in found:
        np.testing.assert_array_equal(out, whole)
    assert library.calls == calls


class Ranks:
    """What work is bound with."""

    def __init__(self, collectives: NcclCommunicator) -> None:
        self.collectives = collectives

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def kernel(operator: str) -> Kernel:
    return next(one for one in load_kernels() if one.operator == operator)


@pytest.mark.parametrize(("num_rows", "width", "size"), [(1, 7, 2), (5, 70, 2), (3, 67, 3), (40, 8, 4)])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=str)
def test_columns_of_all_ranks_are_concatenated(num_rows: int, width: int, size: int, dtype: DType) -> None:
    whole = values_of(3, (num_rows, width), dtype)
    for rank in range(size):
        begin, end = Share(rank, size).part(width)

        def gather(work: Any, memory: Any, bounds: tuple[int, int] = (begin, end)) -> None:
            assert isinstance(work, AllGather)
            np.testing.assert_array_equal(memory(work.part), whole.T[slice(*bounds)])
            memory(work.out)[...] = whole.T

        x, out = np.ascontiguousarray(whole[:, begin:end]), np.zeros_like(whole)
        launch_all(kernel("all_gather_last"), [x], [out], {"width": width}, do_other=gather)
        np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize(("num_tokens", "num_heads", "begin", "count"), [(1, 4, 2, 2), (5, 6, 0, 3), (7, 3, 2, 1)])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=str)
def test_own_heads_are_those_of_the_rank(num_tokens: int, num_heads: int, begin: int, count: int, dtype: DType) -> None:
    x = values_of(1, (num_tokens, num_heads, 10), dtype)
    out = np.zeros((num_tokens, count, 10), dtype.numpy)
    launch_all(kernel("own_heads"), [x], [out], {"begin": begin, "count": count})
    np.testing.assert_array_equal(out, x[:, begin : begin + count])


def test_a_backend_has_collectives_where_nccl_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNccl(2)
    address = free_address()
    cubins = fake_cubins(tmp_path, ["rows"])
    monkeypatch.setattr("aethermind_cuda.backend.find_nccl", lambda: library)

    def run(rank: int) -> list[float]:
        backend = CudaBackend(HostDriver(), cubins)
        ranks: Communicator | None = backend.communicator(rank, 2, address)
        assert ranks is not None
        assert (ranks.rank, ranks.size) == (rank, 2)
        stream = backend.streams.default()
        part = Tensor.of_numpy(np.full((2, 3), rank, np.float32), DeviceId("cuda"))
        whole = Tensor.of_numpy(np.zeros((4, 3), np.float32), DeviceId("cuda"))
        ranks.all_gather(whole, part, stream)
        ranks.all_reduce(part, stream)
        ranks.broadcast(whole, 1, stream)
        ranks.barrier()
        backend.close()
        return [*whole.numpy()[:, 0].tolist(), *part.numpy()[0].tolist()]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [[0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]] * 2
    assert library.handles == set()
    monkeypatch.setattr("aethermind_cuda.backend.find_nccl", lambda: None)
    assert CudaBackend(HostDriver(), cubins).communicator(0, 2, address) is None


def test_two_ranks_communicate_twice_per_layer_and_once_for_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans are bound and run, second and third runs of a size as graphs; kernels compute nothing."""
    library, address = FakeNccl(2), free_address()
    cubins = fake_cubins(tmp_path, [source.stem for source in (ROOT / "aethermind-cuda" / "csrc").glob("*.cu")])
    monkeypatch.setattr("aethermind_cuda.probe.probe", lambda: Probe(2, "GPUs that compute nothing."))
    monkeypatch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(HostDriver(memory=1 << 28), cubins))
    monkeypatch.setattr("aethermind_cuda.kernels._cublaslt.find_cublaslt", lambda: None)
    for module in ("backend", "kernels.collectives"):
        monkeypatch.setattr(f"aethermind_cuda.{module}.find_nccl", lambda: library)
    options: dict[str, Any] = {"device": "cuda", "tensor_parallel_size": 2, "num_kv_blocks": 64, "max_num_seqs": 4}
    plans = [compile_model(Runtime.boot(), "demo", rank=rank, **options) for rank in range(2)]

    def run(compiled: CompiledModel) -> None:
        assert compiled.parallel is not None
        opened, plan = compiled.open_device, compiled.step.plan
        constants = open_constants(compiled)
        constants.load(plan)
        executor = PlanExecutor(plan, opened.backend, opened.device, constants, KVMemory.of(compiled).tensors)
        assert opened.backend.communicator(compiled.parallel.share.rank, 2, address) is not None
        for _ in range(3):
            executor.run((2, 2, 2, 1, 0, 0, 0, 0))
        executor.synchronize()
        opened.backend.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, plans))
    num_layers = plans[0].cache_spec.num_layers
    of_step = [*["all_reduce"] * (2 * num_layers), "all_gather"]
    assert sorted(library.calls[: len(of_step)]) == sorted(of_step)
    assert library.handles == set()


def test_without_nccl_several_ranks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubins = fake_cubins(tmp_path, ["rows"])
    monkeypatch.setattr("aethermind_cuda.probe.probe", lambda: Probe(2, "GPUs that compute nothing."))
    monkeypatch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(HostDriver(), cubins))
    monkeypatch.setattr("aethermind_cuda.kernels.collectives.find_nccl", lambda: None)
    with pytest.raises(KernelNotFoundError, match="NCCL is not installed: pip install nvidia-nccl-cu13"):
        compile_model(Runtime.boot(), "demo", device="cuda", tensor_parallel_size=2)


def test_errors_name_the_call_and_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNccl(2)
    library.status = 5
    nothing: Any = None
    with pytest.raises(DeviceError, match=r"ncclGetUniqueId failed with status 5 \(words for 5\)"):
        NcclCommunicator(library, 0, 2, free_address(), nothing, nothing)
    library.status = 0
    monkeypatch.setattr("aethermind_cuda.nccl._CONNECT_TIMEOUT_S", 0.2)
    with pytest.raises(DeviceError, match="Not all ranks connected to"):
        NcclCommunicator(library, 0, 2, free_address(), nothing, nothing)
    with pytest.raises(DeviceError, match="Rank 0 could not be reached at"):
        NcclCommunicator(library, 1, 2, free_address(), nothing, nothing)
