"""What a kernel's Python side launches, run on the emulator over NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cuda.emulator import compile_kernels

from aethermind.dispatch import Kernel
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Array
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Launch

__all__ = ["launch_all"]

_GPU = DeviceFacts((8, 0), 108, 163 << 10)


def launch_all(
    kernel: Kernel,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array],
    attributes: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
) -> None:
    """Fill `outputs`, whose content before is what device memory holds before. Weights come packed."""
    arrays: list[Array] = []

    def operand(array: Array | None) -> DeviceArray | None:
        if array is None:
            return None
        arrays.append(array)
        return DeviceArray(len(arrays) - 1, DType.of_numpy(array.dtype), array.shape)

    def argument(value: Any) -> Any:
        return arrays[value.address] if isinstance(value, DeviceArray) else getattr(value, "value", value)

    operands = tuple(operand(array) for array in inputs)
    results = tuple(result for array in outputs if (result := operand(array)) is not None)
    assert kernel.function is not None
    for launch in kernel.function(Call(operands, results, attributes or {}, _GPU)):
        assert isinstance(launch, Launch)
        entry = compile_kernels(f"{launch.source}.cu")[launch.kernel]
        arguments = [argument(value) for value in launch.arguments]
        entry(*arguments, grid=launch.grid, block=launch.block, shared=launch.shared_bytes, seeds=seeds)
