"""Operators run on the emulator: what a kernel's Python side launches, launch by launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from tests.cuda.emulator import compile_kernels, memory

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind.dispatch.reference import rounded_inputs
from aethermind.hal.dtype import DType
from aethermind.ops.catalog import load
from aethermind.ops.operator import Array, Operator, OperatorRegistry, Sample
from aethermind.ops.schema import TensorType
from aethermind.testing.operator_calls import KernelCase, check_outputs
from aethermind_cuda.kernels import load_kernels
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Launch, Parameters

__all__ = ["OPERATORS", "SMALL_GPU", "check_call", "kernel_named", "run_call", "supported_kernels"]

SMALL_GPU = DeviceFacts((8, 0), num_multiprocessors=4, shared_bytes=163 * 1024)
"""Few multiprocessors, so that few sequences are split."""


OPERATORS = OperatorRegistry(load())


def kernel_named(operator: str, name: str = "cuda") -> Kernel:
    """One of the package's kernels."""
    return next(kernel for kernel in load_kernels() if (kernel.operator, kernel.name) == (operator, name))


def check_call(
    kernel: Kernel, sample: Sample, float_type: DType, device: DeviceFacts = SMALL_GPU, seeds: Sequence[int] = (0,)
) -> None:
    """Assert that a kernel says what the page says about a sample, for every order of threads that a seed gives."""
    operator = OPERATORS[kernel.operator]
    case = KernelCase(operator, kernel, float_type, sample)
    inputs = rounded_inputs(operator, sample, float_type)
    for seed in seeds:
        outputs = run_call(kernel, inputs, operator.schema.complete(sample.attributes), device, seed)
        check_outputs(case, OPERATORS, inputs, outputs)


def run_call(
    kernel: Kernel, inputs: Sequence[Array | None], attributes: dict[str, object], device: DeviceFacts, seed: int
) -> list[Array]:
    """The outputs. Where one is an input's memory, it begins as that input; everything else begins as garbage."""
    schema = OPERATORS[kernel.operator].schema
    types = schema.infer([None if array is None else _type_of(array) for array in inputs], attributes)
    with ExitStack() as stack:
        arrays = [None if array is None else _placed(stack, array.nbytes, _type_of(array), array) for array in inputs]
        by_name = {spec.name: array for spec, array in zip(schema.inputs, arrays, strict=True)}
        outputs = []
        for spec, type_ in zip(schema.outputs, types, strict=True):
            shared = by_name[spec.alias] if spec.alias else None
            outputs.append(shared or _placed(stack, type_.nbytes({}), type_, None))
        call = Call(tuple(arrays), tuple(outputs), attributes, device)
        assert kernel.function is not None
        nbytes = kernel.function.workspace_bytes(call)
        call = call._replace(workspace=_allocated(stack, nbytes, "workspace"))
        for launch in kernel.function(call):
            assert launch.shared_bytes <= device.shared_bytes
            _launch(launch, seed)
        return [_read(output) for output in outputs]


def _launch(launch: Launch, seed: int) -> None:
    if all(launch.grid):
        parameters = Parameters(launch.arguments)
        kernel = compile_kernels(f"{launch.source}.cu")[launch.kernel]
        kernel.launch_packed(parameters.address, launch.grid, launch.block, launch.shared_bytes, seed)


def _type_of(array: Array) -> TensorType:
    return TensorType(DType.of_numpy(array.dtype), array.shape)


def _allocated(stack: ExitStack, nbytes: int, name: str) -> int:
    address = memory.allocate(nbytes, name)
    stack.callback(memory.free, address)
    return address


def _placed(stack: ExitStack, nbytes: int, type_: TensorType, content: Array | None) -> DeviceArray:
    address = _allocated(stack, nbytes, str(type_))
    if content is not None:
        source = ctypes.create_string_buffer(content.tobytes(), nbytes)
        memory.copy(address, ctypes.addressof(source), nbytes, memory.TO_DEVICE)
    return DeviceArray(address, type_.dtype, type_.shape)


def _read(array: DeviceArray) -> Array:
    target = ctypes.create_string_buffer(max(1, array.nbytes))
    memory.copy(ctypes.addressof(target), array.address, array.nbytes, memory.FROM_DEVICE)
    return np.frombuffer(target.raw[: array.nbytes], array.dtype.numpy).reshape(array.shape)


def supported_kernels(operator: Operator, sample: Sample, float_type: DType) -> list[Kernel]:
    """The package's kernels that take a sample."""
    if float_type not in operator.tolerances:
        return []
    types = tuple(None if a is None else _type_of(a) for a in rounded_inputs(operator, sample, float_type))
    attributes = operator.schema.complete(sample.attributes)
    signature = Signature(operator.name, "cuda", float_type, types, attributes)
    kernels = [k for k in load_kernels() if k.operator == operator.name and float_type in k.dtypes]
    return [kernel for kernel in kernels if kernel.supports(signature) is None]
