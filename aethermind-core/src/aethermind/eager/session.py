"""Operators as functions of one device; a signature is planned at its first call, and its plan is cached."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aethermind.errors import DeviceError, InvalidArgumentError, OperatorError

if TYPE_CHECKING:
    from aethermind.eager.arrays import Array, ArrayKind, PackedWeight
    from aethermind.eager.calls import BoundCall
    from aethermind.eager.device_arrays import DeviceArrays
    from aethermind.hal.tensor import Tensor
    from aethermind.ops.operator import Operator
    from aethermind.ops.schema import Attribute, TensorType
    from aethermind.runtime import OpenDevice, Runtime

__all__ = ["Eager", "Operation"]

_MAX_SIGNATURES = 1024
"""Cached signatures of one operator; all are dropped when there are more."""


_sessions: weakref.WeakValueDictionary[str, Eager] = weakref.WeakValueDictionary()
"""The sessions on devices with memory of their own, by device: their tensors belong to their backend."""


class Eager:
    """Operators by name: `Eager(device="numpy").silu(x)`.

    `auto` is `cpu` where it is installed, else `numpy`. On a device with memory of its own, such as `cuda`, arrays in
    host memory are uploaded for each call and results downloaded. `tensor` keeps them there:

        gpu = Eager(device="cuda")
        y = gpu.silu(gpu.tensor(x))  # a hal.Tensor; gpu.numpy(y) downloads it

    Where no device is named, an array in a device's memory is computed there. Without a `runtime` one is booted.
    """

    def __init__(self, runtime: Runtime | None = None, device: str = "auto") -> None:
        from aethermind.runtime import Runtime

        self._runtime = runtime or Runtime.boot()
        self._opened = _open(self._runtime, device)
        self._follows_arrays = device == "auto"
        self._others: dict[str, Eager] = {}
        self._device_arrays: DeviceArrays | None = None
        if not self._opened.backend.capabilities.is_host_accessible:
            from aethermind.eager.device_arrays import DeviceArrays

            self._device_arrays = DeviceArrays(self._opened)
            _sessions[self.device] = self

    @property
    def device(self) -> str:
        """The name of the device."""
        return str(self._opened.device)

    def pack(self, operator: str, input: str, array: Array) -> PackedWeight:
        """Pack a weight for repeated calls: `eager.linear(x, eager.pack("linear", "weight", weight))`.

        It is packed once instead of with every call. OperatorError for an input that is not a weight.
        """
        from aethermind.eager.arrays import pack_weight

        array = array if self._device_arrays is None else self._device_arrays.tensor(array)
        return pack_weight(self._runtime.operators[operator], input, array, self._opened.backend)

    def tensor(self, array: Array) -> Tensor:
        """Return an array as a tensor on the device: a copy, or a view of what is in the device's memory already.

        On a device in host memory, the tensor is a view of the array.
        """
        if self._device_arrays is not None:
            tensor: Tensor = self._device_arrays.tensor(array)
            return tensor
        from aethermind.eager.arrays import kind_of
        from aethermind.hal.tensor import Tensor

        return Tensor.of_numpy(kind_of(array).numpy(array), self._opened.device)

    def numpy(self, tensor: Tensor) -> Any:
        """Return a tensor of the device as a NumPy array: a copy, or a view where its memory is the host's."""
        return tensor.numpy() if self._device_arrays is None else self._device_arrays.numpy(tensor)

    def close(self) -> None:
        """End the device's threads; no operator may be called afterwards."""
        for other in self._others.values():
            other.close()
        self._opened.backend.close()

    def _elsewhere(self, arrays: Sequence[Array | None]) -> Eager | None:
        """The session of the device in whose memory an array is; None for arrays in host memory.

        It is opened if there is none. OperatorError where no installed backend has such memory.
        """
        from aethermind.eager.device_arrays import dlpack_device
        from aethermind.hal.tensor import Tensor

        for array in arrays if self._follows_arrays else ():
            if isinstance(array, Tensor) and not array.buffer.is_host_accessible:
                return self._session_of(str(array.buffer.device))
            found = None if isinstance(array, Tensor) else dlpack_device(array)
            if found is not None:
                return self._session_of_dlpack(*found)
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

    It returns one array or a tuple of them, of the kind of the first input. OperatorError for arguments that do not fit
    the operator's schema, KernelNotFoundError for a dtype that the device does not compute.
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
        self._session = weakref.ref(session)  # the session has the operation
        self._device_arrays = session._device_arrays
        changed = {spec.alias for spec in operator.schema.outputs if spec.alias and not operator.schema.is_view}
        self._changed = [index for index, spec in enumerate(operator.schema.inputs) if spec.name in changed]

    def __repr__(self) -> str:
        return f"<operator {self._operator.schema.text} on {self._opened.device}>"

    def __call__(self, *tensors: Array | None, **attributes: Any) -> Any:
        """Apply the operator."""
        if self._device_arrays is not None:
            return self._on_device(self._device_arrays, tensors, attributes)
        return self._apply(*tensors, **attributes)

    def _on_device(self, arrays: DeviceArrays, given: Sequence[Array | None], attributes: dict[str, Any]) -> Any:
        """Apply the operator in the memory of a device."""
        given, attributes = self._positional(given, attributes)
        self._check_writable(given)
        moved = [arrays.tensor(array) for array in given]
        return arrays.returned(given, moved, self._apply(*moved, **attributes))

    def _check_writable(self, given: Sequence[Array | None]) -> None:
        for position in self._changed:
            if position < len(given) and not getattr(getattr(given[position], "flags", None), "writeable", True):
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
        except (
            AttributeError,
            TypeError,
        ):  # not an array, or an attribute that is not a number: binding raises the error
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
        """The operation of the device in whose memory the arrays are, if this one is for host memory."""
        session = self._session()
        other = None if session is None or self._device_arrays is not None else session._elsewhere(tensors)
        return None if other is None else getattr(other, self._operator.name)

    def _positional(
        self, tensors: Sequence[Array | None], attributes: Mapping[str, Any]
    ) -> tuple[tuple[Array | None, ...], dict[str, Any]]:
        """Return all inputs by position, and the remaining attributes."""
        schema = self._operator.schema
        rest = dict(attributes)
        names = [spec.name for spec in schema.inputs]
        twice = [name for name in names[: len(tensors)] if name in rest]
        if twice:
            raise OperatorError(f"Operator {schema.name} got the input {twice[0]!r} twice. Signature: {schema.text}")
        named = [rest.pop(name, None) for name in names[len(tensors) :]]
        return (*tensors, *named), rest

    def _bind(
        self, signature: tuple[Any, ...], tensors: Sequence[Array | None], attributes: Mapping[str, Attribute]
    ) -> Any:
        from aethermind.eager.calls import bind_call, check_inputs, plan_signature

        kinds, types = self._described(tensors)
        backend, dispatcher = self._opened.backend, self._opened.dispatcher
        planned = plan_signature(self._operator, self._runtime.operators, dispatcher, backend.name, types, attributes)
        check_inputs(planned, tensors, kinds)
        call = bind_call(planned, kinds, backend)
        if len(self._calls) >= _MAX_SIGNATURES:
            self._calls.clear()
        self._calls[signature] = call
        return call(tensors)

    def _described(self, tensors: Sequence[Array | None]) -> tuple[list[ArrayKind | None], list[TensorType | None]]:
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
