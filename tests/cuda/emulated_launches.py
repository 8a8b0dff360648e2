"""What a kernel's Python side launches, run on the emulator over NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tests.cuda.emulator import TiledMatrix, compile_kernels

from aethermind.dispatch import Kernel
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Array
from aethermind_cuda.cublas import DenseProduct
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, KernelFunction, Launch, TensorMap

__all__ = ["launch_all"]

_GPU = DeviceFacts((8, 0), 108, 163 << 10)
_FAR = 1 << 32
"""Memory between two arrays, so that addresses of one are not addresses of the other."""
_WORKSPACE = 1 << 40


def launch_all(
    kernel: Kernel,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array],
    attributes: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    do_other: Callable[[Any, Callable[[DeviceArray], Array]], None] | None = None,
    compute_capability: tuple[int, int] = _GPU.compute_capability,
) -> None:
    """Fill `outputs`, whose content before is what device memory holds before. Weights come packed.

    Products of cuBLASLt are NumPy's. `do_other(work, memory)` does what is neither they nor a launch, where
    `memory(array)` is what lies there.
    """
    arrays: list[Array] = []

    def memory_at(address: int) -> Array:
        """Bytes from there to the end of their array."""
        if address >= _WORKSPACE:
            return workspace[address - _WORKSPACE :]
        number, offset = divmod(address, _FAR)
        return arrays[number].reshape(-1).view(np.uint8)[offset:]

    def operand(array: Array | None) -> DeviceArray | None:
        if array is None:
            return None
        arrays.append(array)
        return DeviceArray((len(arrays) - 1) * _FAR, DType.of_numpy(array.dtype), array.shape)

    def memory(array: DeviceArray) -> Array:
        if array.address < _WORKSPACE and arrays[array.address // _FAR].shape == array.shape:
            return arrays[array.address // _FAR]
        return memory_at(array.address)[: array.nbytes].view(array.dtype.numpy).reshape(array.shape)

    def rows(array: DeviceArray, stride: int | None) -> Array:
        if stride is None:
            return memory(array)
        num_rows, num_columns = array.shape
        values = memory_at(array.address)[: ((num_rows - 1) * stride + num_columns) * array.dtype.itemsize]
        strides = stride * array.dtype.itemsize, array.dtype.itemsize
        return np.ndarray(array.shape, array.dtype.numpy, values, strides=strides)

    def argument(value: Any) -> Any:
        if isinstance(value, TensorMap):
            dtype = next(array.dtype for array in operands if array is not None)
            return TiledMatrix(memory(DeviceArray(value.address, dtype, (value.rows, value.columns))), value.box_rows)
        return memory(value) if isinstance(value, DeviceArray) else getattr(value, "value", value)

    operands = tuple(operand(array) for array in inputs)
    results = tuple(result for array in outputs if (result := operand(array)) is not None)
    gpu = _GPU._replace(compute_capability=compute_capability)
    call = Call(operands, results, attributes or {}, gpu, _WORKSPACE)
    assert isinstance(kernel.function, KernelFunction)
    workspace = np.full(kernel.function.workspace_bytes(call), 0xFF, np.uint8)
    for work in kernel.function(call):
        if isinstance(work, DenseProduct):
            x, weight = (memory(array).astype(np.float32) for array in (work.x, work.weight))
            product = x @ weight.T
            if work.scales is not None:
                of_weight, of_x = map(memory, work.scales)
                product *= of_x[:, None] * of_weight
            product += 0 if work.bias is None else memory(work.bias).astype(np.float32)
            rows(work.out, work.out_stride)[...] = product
            continue
        if do_other is not None and not isinstance(work, Launch):
            do_other(work, memory)
            continue
        assert isinstance(work, Launch)
        entry = compile_kernels(f"{work.source}.cu")[work.kernel]
        arguments = [argument(value) for value in work.arguments]
        entry(*arguments, grid=work.grid, block=work.block, shared=work.shared_bytes, seeds=seeds)
