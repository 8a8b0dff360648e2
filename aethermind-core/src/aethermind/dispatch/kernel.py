"""A kernel: one implementation of one operator on one kind of device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from aethermind.errors import AetherMindError, KernelError, describe_exception
from aethermind.hal.dtype import DType
from aethermind.ops.operator import BROADCASTING
from aethermind.ops.schema import Attribute, TensorType
from aethermind.ops.weight_format import DENSE

__all__ = ["Kernel", "Pack", "REPAIR_ADVICE", "Signature"]

T = TypeVar("T")

_CAPSULE = b"aethermind.kernel.v1"

REPAIR_ADVICE = "Update or uninstall its package, or choose another device."
"""The advice in errors about a kernel that breaks its contract."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A call of an operator for which a kernel is chosen.

    `dtype` is that of F, the float type in the operator's schema. The dims of `inputs` may be symbolic. `weight_format`
    is the format of the operator's weights; if they have several, the names are joined: `dense+int4`. `packed` maps an
    input that is gathered from, such as an embedding table, to the layout into which it is packed for another operator.
    `additions` maps each optional input or attribute that the operator gained after its first release to whether the
    call uses it; `extension` names what the call has that plugin API 1 did not allow, or is None (see `Operator`).
    """

    operator: str
    device_type: str
    dtype: DType
    inputs: tuple[TensorType | None, ...]
    attributes: Mapping[str, Attribute]
    weight_format: str = DENSE
    packed: Mapping[str, str] = field(default_factory=dict)
    additions: Mapping[str, bool] = field(default_factory=dict)
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class Pack:
    """The layout in which a kernel reads a weight, and how to pack it.

    `name` identifies the layout: kernels that name the same one share one packed copy. `nbytes(shape, dtype)` is its
    size, `dtype` being that of the operator's F. `pack(source, destination_address)` writes a weight to host memory.
    The source is a row-major NumPy array of that dtype. For a quantised `weight_format` it is a QuantizedWeight of this
    format, or a row-major array of float32, bfloat16 or float16. The pack quantises such an array itself, to the same
    quantised values, scales and zero points as the format's `quantize`.

    For devices with memory of their own, `pack_on_device(backend, source, destination)` may do the same on the device:
    it takes such an array in host memory, and returns when it has written the same bytes to the tensor `destination`.

    With `is_adjacent`, packed weights that one step reads first follow each other in memory, as row-major ones do (see
    `graph.constants.ConstantStore`): a kernel may read them as one matrix.

    `build` identifies the code that packs; another build has another name. If it is given, packed weights may be cached
    on disk and mapped by later processes (see `engine.weight_cache`): their bytes have to depend on nothing but
    the weight, the layout and this code. They are then in read-only memory.
    """

    name: str
    nbytes: Callable[[tuple[int, ...], DType], int]
    pack: Callable[[Any, int], None]
    weight_format: str = DENSE
    pack_on_device: Callable[[Any, Any, Any], None] | None = None
    build: str | None = None
    is_adjacent: bool = False


def _supports_everything(_: Signature) -> str | None:
    return None


class _Arity(NamedTuple):
    """The numbers of inputs and attributes that a native kernel takes."""

    inputs: int
    attributes: int


def _arity_of(native: object) -> _Arity | None:
    """Read the arity from the `am_kernel` of a capsule; None if the object is no capsule of the kernel ABI."""
    import ctypes

    is_valid, pointer_of = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    is_valid.argtypes = pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
    pointer_of.restype = ctypes.c_void_p
    if not is_valid(native, _CAPSULE):
        return None
    _, num_inputs, _, num_attributes = (ctypes.c_uint32 * 4).from_address(pointer_of(native, _CAPSULE))
    return _Arity(num_inputs, num_attributes)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel: one implementation of an operator on one kind of device.

    It is an out-variant: the caller owns the outputs, and a kernel never allocates, logs or parses. It has exactly one
    of two forms: `native`, a PyCapsule of the C ABI (`aethermind/kernel_abi.h`), or
    `function(inputs, outputs, attributes)`, a Python callable that returns None. Inputs (None where absent) and outputs
    are NumPy views of host memory; a backend with an executable of its own may pass others, such as tensors of a
    library. `supports` returns None, or why it does not support a call. Of the kernels that support a call, the one of
    highest `priority` is chosen. `packs` are the layouts of inputs that are not row-major.

    `weight_formats` are the weight formats that it computes with, None for all. A quantised weight is passed in the
    kernel's pack for that input, to a function as its bytes, uint8 [nbytes]; without a pack it is passed as float32
    values.

    `arithmetic` is the dtype whose peak rate bounds the kernel's operations (roofline), if that is not F: kernels that
    quantise activations compute in int8.

    `is_batch_invariant` promises that a row's results have the same bits whatever the other rows of a call are, and
    however many. Only such kernels are chosen with `deterministic=True`; the conformance kit checks it.

    `rounds_weights` says that dequantised weights may be rounded to F before the multiplication.

    `additions` are the optional inputs and attributes, added to the operator after its first release (see `Operator`),
    that the kernel computes. A native kernel names BROADCASTING only; the others follow from the numbers of inputs and
    attributes in its `am_kernel`. A kernel is not chosen for a call that uses an addition which it does not compute.
    Its calls, and the signatures that `supports` gets, lack the trailing additions that it does not compute: a kernel
    that is older than an addition gets the inputs and attributes that it was written for.

    `provider` is the package that the kernel comes from, for messages, and `api_version` the version of the plugin API
    by which it offers the kernel, None for the newest. The registry sets both.
    """

    operator: str
    device_type: str
    name: str
    dtypes: frozenset[DType]
    priority: int = 0
    native: object | None = None
    function: Callable[..., None] | None = None
    packs: Mapping[str, Pack] = field(default_factory=dict)
    supports: Callable[[Signature], str | None] = _supports_everything
    weight_formats: frozenset[str] | None = frozenset({DENSE})
    is_batch_invariant: bool = False
    arithmetic: DType | None = None
    rounds_weights: bool = False
    provider: str = ""
    additions: frozenset[str] = frozenset()
    api_version: int | None = None

    def __post_init__(self) -> None:
        assert (self.native is None) != (self.function is None), (
            f"kernel {self.name} must be native or a function, not both"
        )

    @property
    def title(self) -> str:
        """The name of a kernel in messages: `'name' for linear of my-package`."""
        return f"{self.name!r} for {self.operator}" + (f" of {self.provider}" if self.provider else "")

    def reason_against(self, signature: Signature) -> str | None:
        """Return None, or why the kernel does not support a call: its extension, an addition, or the result of
        `supports`.
        """
        if signature.extension is not None and self.api_version == 1:
            return f"is for plugin API 1, which has no {signature.extension}"
        if not signature.additions:
            return self.supports(signature)
        inputs, attributes = signature.inputs, signature.attributes
        known = self._known_additions(len(inputs), attributes, tuple(signature.additions))
        for name, is_used in signature.additions.items():
            if is_used and name not in known:
                return f"does not compute {name}"
        inputs, attributes = self.arguments(inputs, attributes, tuple(signature.additions))
        return self.supports(replace(signature, inputs=inputs, attributes=attributes))

    def arguments(
        self, inputs: tuple[T, ...], attributes: Mapping[str, Attribute], additions: Sequence[str]
    ) -> tuple[tuple[T, ...], Mapping[str, Attribute]]:
        """Return the inputs and attributes of a call without the trailing `additions` that the kernel does not know."""
        if not additions:
            return inputs, attributes
        known = self._known_additions(len(inputs), attributes, additions)
        num_inputs = len(inputs) - _num_unknown_at_end(_optional_inputs(additions, attributes), known)
        names = list(attributes)
        unknown_at_end = _num_unknown_at_end([name for name in additions if name in attributes], known)
        return inputs[:num_inputs], {name: attributes[name] for name in names[: len(names) - unknown_at_end]}

    def _known_additions(
        self, num_inputs: int, attributes: Mapping[str, Attribute], additions: Sequence[str]
    ) -> frozenset[str]:
        """Return the additions that the kernel computes; all if `native` is not a kernel, an error that binding
        reports.
        """
        if self.native is None:
            return self.additions
        arity = _arity_of(self.native)
        if arity is None:
            return frozenset(additions)
        inputs = _optional_inputs(additions, attributes)
        first = num_inputs - len(inputs)  # additions follow the inputs of the first release
        known = {*inputs[: max(arity.inputs - first, 0)], *list(attributes)[: arity.attributes], *self.additions}
        return frozenset(known.intersection(additions))

    def failure(self, error: Exception) -> KernelError:
        """Return the error to raise after the kernel's function raised `error`, which is not an AetherMindError."""
        return KernelError(f"Kernel {self.title} raised {describe_exception(error)} {REPAIR_ADVICE}")

    def call(self, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Attribute]) -> None:
        """Call a Python kernel; KernelError names it and its package where it fails.

        Returning anything but None is an error, too: such a kernel computed into arrays of its own, not into `outputs`.
        """
        assert self.function is not None, "a native kernel is not called from Python"
        try:
            returned: object = self.function(inputs, outputs, attributes)
        except AetherMindError:
            raise
        except Exception as error:
            raise self.failure(error) from error
        if returned is not None:
            raise KernelError(
                f"Kernel {self.title} returned {type(returned).__name__} instead of None: a kernel writes its results "
                "into `outputs`, such as by `outputs[0][...] = …`."
            )


def _optional_inputs(additions: Sequence[str], attributes: Mapping[str, Attribute]) -> list[str]:
    return [name for name in additions if name not in attributes and name != BROADCASTING]


def _num_unknown_at_end(additions: Sequence[str], known: frozenset[str]) -> int:
    return next((position for position, name in enumerate(reversed(additions)) if name in known), len(additions))
