"""Operators as functions on one device. Each signature is planned at its first call, and its plan is cached."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aethermind.errors import DeviceError, InvalidArgumentError, OperatorError

if TYPE_CHECKING:
    from aethermind.eager.arrays import Array, ArrayKind, DeviceArrays, PackedWeight
    from aethermind.eager.calls import BoundCall
    from aethermind.hal.tensor import Tensor
    from aethermind.ops.operator import Operator
    from aethermind.ops.schema import Attribute, TensorType
    from aethermind.runtime import OpenDevice, Runtime

__all__ = ["Eager", "Operation"]

_MAX_SIGNATURES = 1024
"""The limit of cached signatures of one operator; when it is reached, all are dropped."""


_sessions: weakref.WeakValueDictionary[str, Eager] = weakref.WeakValueDictionary()
"""The sessions on devices with memory of their own, by device. A tensor can be used by the session of its backend only.
"""


class Eager:
    """Operators by name: `Eager(device="numpy").silu(x)`.

    The device `auto` is `cpu` if it is installed, else `numpy`; calls with arrays in the memory of another device run
    on that device. If `runtime` is None, one is booted. On a device with memory of its own, such as `cuda`, arrays in
    host memory are uploaded for each call, and results are downloaded. `tensor` uploads an array once:

        gpu = Eager(device="cuda")
        y = gpu.silu(gpu.tensor(x))  # a hal.Tensor; gpu.numpy(y) downloads it
    """

    def __init__(self, runtime: Runtime | None = None, device: str = "auto") -> None:
        from aethermind.runtime import Runtime

        self._runtime = runtime or Runtime.boot()
        self._opened = _open(self._runtime, device)
        self._follows_arrays = device == "auto"
        self._others: dict[str, Eager] = {}
        self._device_arrays: DeviceArrays | None = None
        if not self._opened.backend.capabilities.is_host_accessible:
            from aethermind.eager.arrays import DeviceArrays

            self._device_arrays = DeviceArrays(self._opened)
            _sessions[self.device] = self

    @property
    def device(self) -> str:
        """The name of the device."""
        return str(self._opened.device)

    def pack(self, operator: str, input: str, array: Array) -> PackedWeight:
        """Pack a weight for repeated calls: `eager.linear(x, eager.pack("linear", "weight", weight))`.

        The weight is packed once instead of with every call. OperatorError for an input that is not a weight.
        """
        from aethermind.eager.arrays import pack_weight

        array = array if self._device_arrays is None else self._device_arrays.tensor(array)
        return pack_weight(self._runtime.operators[operator], input, array, self._opened.backend)

    def tensor(self, array: Array) -> Tensor:
        """Return an array as a tensor on the device: a copy, or a view if the array is in the device's memory already.

        If the device's memory is the host's, the tensor is a view.
        """
        if self._device_arrays is not None:
            tensor: Tensor = self._device_arrays.tensor(array)
            return tensor
        from aethermind.eager.arrays import kind_of
        from aethermind.hal.tensor import Tensor

        return Tensor.of_numpy(kind_of(array).numpy(array), self._opened.device)

    def numpy(self, tensor: Tensor) -> Any:
        """Return a tensor of the device as a NumPy array: a copy, or a view if the device's memory is the host's."""
        return tensor.numpy() if self._device_arrays is None else self._device_arrays.numpy(tensor)

    def close(self) -> None:
        """Stop the device's threads; no operator may be called afterwards."""
        for other in self._others.values():
            other.close()
        self._opened.backend.close()

    def _session_of_arrays(self, arrays: Sequence[Array | None]) -> Eager | None:
        """Return the session of the device in whose memory an array is; None for arrays in host memory.

        If there is no such session yet, one is opened. OperatorError if no installed backend has such memory.
        """
        from aethermind.eager.arrays import dlpack_device
        from aethermind.hal.tensor import Tensor

        for array in arrays if self._follows_arrays else ():
            if isinstance(array, Tensor) and not array.buffer.is_host_accessible:
                return self._session_of(str(array.buffer.device))
            device = None if isinstance(array, Tensor) else dlpack_device(array)
            if device is not None:
                return self._session_of_dlpack(*device)
        return None

    def _session_of(self, device: str) -> Eager:
        session = _sessions.get(device)
        if session is None:
            session = self._others[device] = Eager(self._runtime, device)
        return session

    def _session_of_dlpack(self, device_type: int, index: int) -> Eager:
        for entry in self._runtime.devices:
            if entry.priority >= 0 and entry.probe().is_available:
                session = self._session_of(f"{entry.name}:{index}")
                if session._opened.backend.capabilities.dlpack_device_type == device_type:
                    return session
        raise OperatorError(
            f"No installed backend computes in memory of DLPack's device type {device_type}; copy the array to host "
            "memory first."
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(operator.name for operator in self._runtime.operators)]

    def __getattr__(self, name: str) -> Operation:
        if name.startswith("_") or name not in self._runtime.operators:
            raise AttributeError(f"There is no operator {name!r}; `aethermind ops` lists those that exist.")
        operation = Operation(self._runtime.operators[name], self._runtime, self._opened, self)
        setattr(self, name, operation)
        return operation


class Operation:
    """An operator on a device: a function of inputs by position or by name, and attributes by name.

    A call returns one array or a tuple of arrays, of the kind of the first input. OperatorError for arguments that do
    not fit the operator's schema, KernelNotFoundError for a dtype that the device does not compute.
    """

    def __init__(self, operator: Operator, runtime: Runtime, opened: OpenDevice, session: Eager) -> None:
        self.__name__ = operator.name
        self.__doc__ = f"{operator.summary}\n\n{operator.schema.text}"
        self._operator = operator
        self._runtime = runtime
        self._opened = opened
        self._num_inputs = len(operator.schema.inputs)
        self._input_names = frozenset(spec.name for spec in operator.schema.inputs)
        self._calls: dict[tuple[Any, ...], BoundCall] = {}
        self._session = weakref.ref(session)  # weak, because the session refers to the operation
        self._device_arrays = session._device_arrays
        changed = {spec.alias for spec in operator.schema.outputs if spec.alias and not operator.schema.is_view}
        self._changed_inputs = [index for index, spec in enumerate(operator.schema.inputs) if spec.name in changed]

    def __repr__(self) -> str:
        return f"<operator {self._operator.schema.text} on {self._opened.device}>"

    def __call__(self, *tensors: Array | None, **attributes: Any) -> Any:
        """Apply the operator."""
        if self._device_arrays is not None:
            return self._on_device(self._device_arrays, tensors, attributes)
        return self._apply(*tensors, **attributes)

    def _on_device(self, moves: DeviceArrays, arrays: Sequence[Array | None], attributes: dict[str, Any]) -> Any:
        """Apply the operator in the memory of a device, to which `moves` uploads the arrays."""
        arrays, attributes = self._positional(arrays, attributes)
        self._check_writable(arrays)
        tensors = [moves.tensor(array) for array in arrays]
        return moves.download(arrays, tensors, self._apply(*tensors, **attributes))

    def _check_writable(self, arrays: Sequence[Array | None]) -> None:
        for position in self._changed_inputs:
            if position < len(arrays) and not getattr(getattr(arrays[position], "flags", None), "writeable", True):
                name = self._operator.schema.inputs[position].name
                raise OperatorError(
                    f"Operator {self._operator.name} changes its input {name!r} in place, which is read-only; pass a "
                    "copy."
                )

    def _apply(self, *tensors: Array | None, **attributes: Any) -> Any:
        key: list[Any] = []
        if attributes:
            if not self._input_names.isdisjoint(attributes):
                tensors, attributes = self._positional(tensors, attributes)
            for name, value in attributes.items():
                key += (name, tuple(value) if value.__class__ is list else value, value.__class__)
        if len(tensors) < self._num_inputs:
            tensors += (None,) * (self._num_inputs - len(tensors))
        try:
            for tensor in tensors:
                if tensor is None:
                    key.append(None)
                else:
                    key += (tensor.__class__, tensor.dtype, tensor.shape)
            signature = tuple(key)
            call = self._calls.get(signature)
        except (AttributeError, TypeError):
            # Not an array, or an attribute that is not a number: `_bind` raises the error.
            signature, call = (), None
        if call is not None:
            try:
                return call(tensors)
            except OperatorError:  # a torch tensor may have the same signature on another device
                if self._other_operation(tensors) is None:
                    raise
        if (other := self._other_operation(tensors)) is not None:
            return other(*tensors, **attributes)
        return self._bind(signature, tensors, attributes)

    def _other_operation(self, tensors: Sequence[Array | None]) -> Operation | None:
        """Return the operation on the device in whose memory the arrays are; None if that is this operation's."""
        session = self._session()
        other = None if session is None or self._device_arrays is not None else session._session_of_arrays(tensors)
        return None if other is None else getattr(other, self._operator.name)

    def _positional(
        self, tensors: Sequence[Array | None], attributes: Mapping[str, Any]
    ) -> tuple[tuple[Array | None, ...], dict[str, Any]]:
        """Return all inputs by position, those that were passed by name too, and the attributes."""
        schema = self._operator.schema
        remaining = dict(attributes)
        names = [spec.name for spec in schema.inputs]
        twice = [name for name in names[: len(tensors)] if name in remaining]
        if twice:
            raise OperatorError(f"Operator {schema.name} got the input {twice[0]!r} twice. Signature: {schema.text}")
        by_name = [remaining.pop(name, None) for name in names[len(tensors) :]]
        return (*tensors, *by_name), remaining

    def _bind(
        self, signature: tuple[Any, ...], tensors: Sequence[Array | None], attributes: Mapping[str, Attribute]
    ) -> Any:
        """Plan a new signature, cache its call, and call it."""
        from aethermind.eager.calls import bind_call, check_inputs, plan_signature

        kinds, types = self._kinds_and_types(tensors)
        backend, dispatcher = self._opened.backend, self._opened.dispatcher
        planned = plan_signature(self._operator, self._runtime.operators, dispatcher, backend.name, types, attributes)
        check_inputs(planned, tensors, kinds)
        call = bind_call(planned, kinds, backend)
        if len(self._calls) >= _MAX_SIGNATURES:
            self._calls.clear()
        self._calls[signature] = call
        return call(tensors)

    def _kinds_and_types(
        self, tensors: Sequence[Array | None]
    ) -> tuple[list[ArrayKind | None], list[TensorType | None]]:
        """Return the kind and the type of each input, None for absent ones."""
        from aethermind.eager.arrays import PackedKind, PackedWeight, TensorKind, kind_of
        from aethermind.hal.tensor import Tensor
        from aethermind.ops.schema import TensorType

        kinds: list[ArrayKind | None] = []
        types: list[TensorType | None] = []
        for position, tensor in enumerate(tensors):
            if tensor is None:
                kinds.append(None)
                types.append(None)
                continue
            if isinstance(tensor, PackedWeight) and position < self._num_inputs:
                name = self._operator.schema.inputs[position].name
                kind: ArrayKind = PackedKind(tensor, self._operator.name, name, self._opened.backend)
            else:
                kind = TensorKind(self._opened.backend) if isinstance(tensor, Tensor) else kind_of(tensor)
            try:
                types.append(TensorType(kind.dtype(tensor), tuple(tensor.shape)))
            except InvalidArgumentError as error:
                raise OperatorError(f"Operator {self._operator.name}: {error}") from None
            kinds.append(kind)
        return kinds, types


def _open(runtime: Runtime, device: str) -> OpenDevice:
    from aethermind.dispatch import Fallback

    if device == "auto":
        try:
            return runtime.open_device("cpu", fallback=Fallback.ALLOW)
        except DeviceError:
            device = "numpy"
    return runtime.open_device(device, fallback=Fallback.ALLOW)
