"""Operators as functions of one device; a signature is planned at its first call, and its plan is cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aethermind.errors import DeviceError, InvalidArgumentError, OperatorError

if TYPE_CHECKING:
    from aethermind.eager.arrays import Array, ArrayKind, PackedWeight
    from aethermind.eager.calls import BoundCall
    from aethermind.ops.operator import Operator
    from aethermind.ops.schema import Attribute, TensorType
    from aethermind.runtime import OpenDevice, Runtime

__all__ = ["Eager", "Operation"]

_MAX_SIGNATURES = 1024
"""Cached signatures of one operator; all are dropped when there are more."""


class Eager:
    """Operators by name: `Eager(device="numpy").silu(x)`.

    `device` is one in host memory, such as `cpu` or `numpy`; `auto` is `cpu` where it is installed. Without a `runtime`
    one is booted.
    """

    def __init__(self, runtime: Runtime | None = None, device: str = "auto") -> None:
        from aethermind.runtime import Runtime

        self._runtime = runtime or Runtime.boot()
        self._opened = _open(self._runtime, device)

    @property
    def device(self) -> str:
        """The name of the device."""
        return str(self._opened.device)

    def pack(self, operator: str, input: str, array: Array) -> PackedWeight:
        """Pack a weight for repeated calls: `eager.linear(x, eager.pack("linear", "weight", weight))`.

        It is packed once instead of with every call. OperatorError for an input that is not a weight.
        """
        from aethermind.eager.arrays import pack_weight

        return pack_weight(self._runtime.operators[operator], input, array, self._opened.backend)

    def close(self) -> None:
        """End the device's threads; no operator may be called afterwards."""
        self._opened.backend.close()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(operator.name for operator in self._runtime.operators)]

    def __getattr__(self, name: str) -> Operation:
        if name.startswith("_") or name not in self._runtime.operators:
            raise AttributeError(f"There is no operator {name!r}; `aethermind ops` lists those that exist.")
        operation = Operation(self._runtime.operators[name], self._runtime, self._opened)
        setattr(self, name, operation)
        return operation


class Operation:
    """An operator on a device: a function of inputs by position or by name, and attributes by name.

    It returns one array or a tuple of them, of the kind of the first input. OperatorError for arguments that do not fit
    the operator's schema, KernelNotFoundError for a dtype that the device does not compute.
    """

    def __init__(self, operator: Operator, runtime: Runtime, opened: OpenDevice) -> None:
        self.__name__ = operator.name
        self.__doc__ = f"{operator.summary}\n\n{operator.schema.text}"
        self._operator = operator
        self._runtime = runtime
        self._opened = opened
        self._num_inputs = len(operator.schema.inputs)
        self._input_names = frozenset(spec.name for spec in operator.schema.inputs)
        self._calls: dict[tuple[Any, ...], BoundCall] = {}

    def __repr__(self) -> str:
        return f"<operator {self._operator.schema.text} on {self._opened.device}>"

    def __call__(self, *tensors: Array | None, **attributes: Any) -> Any:
        """Apply the operator."""
        key: list[Any] = []
        if attributes:
            if not self._input_names.isdisjoint(attributes):
                tensors, attributes = self._positional(tensors, attributes)
            for name, value in attributes.items():
                key += (name, value, value.__class__)
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
        if call is None:
            return self._bind(signature, tensors, attributes)
        return call(tensors)

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
        from aethermind.eager.arrays import PackedKind, PackedWeight, kind_of
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
                kind = kind_of(tensor)
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
    opened = runtime.open_device(device, fallback=Fallback.ALLOW)
    if not opened.backend.capabilities.is_host_accessible:
        opened.backend.close()
        raise DeviceError(
            f"Arrays are in host memory, which device {opened.device} does not compute on; choose cpu or numpy."
        )
    return opened
