"""The cpu backend: plugin registration, device properties, number of threads, packing and measured limits."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

import numpy as np
import pytest

from aethermind.dispatch import KernelRegistry
from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.hal import DeviceRegistry, DType
from aethermind.plugins import ENTRY_POINT_GROUP
from aethermind_cpu import _native, plugin
from aethermind_cpu.backend import CpuBackend
from aethermind_cpu.devices import available_memory_bytes, num_physical_cores
from aethermind_cpu.isa import built_levels, isa_levels, isa_limit
from aethermind_cpu.kernels import kernels


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def test_the_plugin_is_found_and_claims_the_device() -> None:
    (entry_point,) = entry_points(group=ENTRY_POINT_GROUP, name="cpu")
    assert entry_point.load() is plugin
    registry = DeviceRegistry()
    plugin.register_devices(registry)
    selection = registry.select("auto")
    assert (str(selection.device), selection.entry.priority, selection.entry.provider) == (
        "cpu:0",
        10,
        "aethermind-cpu",
    )
    backend = selection.entry.open()
    assert backend.name == "cpu"
    backend.close()


def test_the_plugin_offers_kernels_and_a_check() -> None:
    registry = KernelRegistry()
    plugin.register_kernels(registry)
    assert all(kernel.device_type == "cpu" and kernel.native is not None for kernel in registry.kernels("cpu"))
    assert [title for title, _ in plugin.doctor_checks()] == [
        "cpu: native module",
        "cpu: instruction sets",
        "cpu: tile unit",
    ]
    assert all(check() for _, check in plugin.doctor_checks())


def test_one_device_with_its_properties(backend: CpuBackend) -> None:
    assert (backend.devices.count(), backend.devices.current()) == (1, 0)
    properties = backend.devices.properties(0)
    assert properties.total_memory_bytes >= available_memory_bytes() > 0
    assert properties.num_cores == num_physical_cores() >= 1
    assert list(properties.isa) == _native.cpu_features()
    for call in (backend.devices.properties, backend.devices.set_current, backend.devices.synchronize):
        with pytest.raises(DeviceError, match="cpu:1 does not exist"):
            call(1)


def test_number_of_threads_from_caller_environment_or_machine(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backend.set_num_threads(3) == 3
    monkeypatch.setenv("AETHERMIND_NUM_THREADS", "4")
    assert backend.set_num_threads(None) == 4
    monkeypatch.delenv("AETHERMIND_NUM_THREADS")
    assert backend.set_num_threads(None) == num_physical_cores()
    with pytest.raises(InvalidArgumentError, match="threads is 0"):
        backend.set_num_threads(0)
    with pytest.raises(InvalidArgumentError, match="threads is 1000000; it must be from 1 to"):
        backend.set_num_threads(1_000_000)


def test_bfloat16_is_the_default_dtype_where_the_cpu_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    has_bfloat16 = isa_limit().multiplies_bfloat16
    backend = CpuBackend()
    assert backend.capabilities.dtypes[0] is (DType.BFLOAT16 if has_bfloat16 else DType.FLOAT32)
    backend.close()
    monkeypatch.setenv("AETHERMIND_CPU_ISA", "portable")
    backend = CpuBackend()
    assert backend.capabilities.dtypes == (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
    assert backend.capabilities.is_host_accessible
    backend.close()


def test_an_environment_variable_limits_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in built_levels():
        monkeypatch.setenv("AETHERMIND_CPU_ISA", isa.label)
        allowed = {f"cpu/{each.label}" for each in isa_levels()[: isa.level + 1]}
        assert {kernel.name.partition(" ")[0] for kernel in kernels()} <= allowed
    monkeypatch.setenv("AETHERMIND_CPU_ISA", "altivec")
    with pytest.raises(InvalidArgumentError, match=r"'altivec'.*Known here: portable, "):
        isa_limit()


@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (63, 5), (1000, 333), (129, 7, 300)])
def test_a_weight_packed_in_parts_equals_one_packed_at_once(shape: tuple[int, ...]) -> None:
    entries = {pack.name: (entry, pack) for entry in _native.kernel_table() for _, pack in entry.packs}
    packs = {pack.name: pack for kernel in kernels() for pack in kernel.packs.values() if pack.weight_format == "dense"}
    dtypes = {dtype.code: dtype for dtype in DType}
    assert packs
    for name, pack in packs.items():
        entry, native = entries[name]
        dtype = dtypes[entry.dtype]
        weight = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype.numpy)
        weight.flags.writeable = False
        nbytes = pack.nbytes(shape, dtype)
        in_parts, at_once = np.full(nbytes, 1, np.uint8), np.full(nbytes, 2, np.uint8)
        pack.pack(weight, in_parts.ctypes.data)
        native.pack(weight.ctypes.data, shape[0], int(np.prod(shape[1:])), at_once.ctypes.data)
        np.testing.assert_array_equal(in_parts, at_once)


def test_limits_are_measured_for_the_dtypes_that_have_them(backend: CpuBackend) -> None:
    limits = backend.measure_limits([DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT8, DType.INT64], 1)
    assert limits.memory_bytes_per_s > 0
    assert set(limits.flops_per_s) == {"float32", "float16", "bfloat16", "int8"}
    assert all(rate > 0 for rate in limits.flops_per_s.values())
    with pytest.raises(InvalidArgumentError, match="threads is 0"):
        backend.measure_limits([DType.FLOAT32], 0)
