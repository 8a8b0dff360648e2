"""A kernel: one implementation of one operator on one kind of device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aethermind.errors import AetherMindError, KernelError, in_words
from aethermind.hal.dtype import DType
from aethermind.ops.schema import Attribute, TensorType
from aethermind.ops.weight_format import DENSE

__all__ = ["Kernel", "Pack", "REPAIR", "Signature"]

REPAIR = "Update or uninstall its package, or choose another device."
"""What to do about a kernel that breaks its contract."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One call to be resolved. `dtype` is what the operator's F stands for; `inputs` may hold symbolic dims.

    `weight_format` is that of the operator's weights; where they differ, their names in one: `dense+int4`.
    `packed` names, by input, the layout that a weight of which only rows are picked has anyway, for another operator.
    """

    operator: str
    device_type: str
    dtype: DType
    inputs: tuple[TensorType | None, ...]
    attributes: Mapping[str, Attribute]
    weight_format: str = DENSE
    packed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pack:
    """How a kernel wants a weight laid out.

    `name` identifies the layout: two kernels that name the same one share a single packed copy. `nbytes(shape, dtype)`
    is its size, `dtype` that of the operator's F, and `pack(source, destination_address)` writes a weight there, which
    is host memory always. The source is a row-major NumPy array of that dtype. In the layout of a `weight_format` it is
    a QuantizedWeight of this format, or a row-major array of float32, bfloat16 or float16, which the pack quantises
    itself to the same codes, scales and zero points as the format's own `quantize`.

    Where a device with memory of its own does that better, `pack_on_device(backend, source, destination)` takes such an
    array, in host memory, and has the same bytes in the tensor `destination` on return.

    `build` names the code that packs, another build by another name. Where it is given, packed weights may be kept on
    disk and read in place by later processes (see `engine.weight_cache`), since their bytes depend on nothing but the
    weight, the layout and this code. They lie then in memory that can only be read.
    """

    name: str
    nbytes: Callable[[tuple[int, ...], DType], int]
    pack: Callable[[Any, int], None]
    weight_format: str = DENSE
    pack_on_device: Callable[[Any, Any, Any], None] | None = None
    build: str | None = None


def _supports_everything(_: Signature) -> str | None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """An out-variant: the caller owns outputs; a kernel never allocates, logs or parses.

    Exactly one of two forms is given: `native`, a PyCapsule of the C ABI (`aethermind/kernel_abi.h`), or
    `function(inputs, outputs, attributes)`, a Python callable that returns None. Inputs, None where one is absent, and
    outputs are NumPy views of host memory; on a device whose backend has an executable of its own they are what that
    hands over, such as tensors of a library. `supports` returns None, or the reason why not. Of several that support a
    call the highest `priority` is chosen. `packs` names the inputs that want another layout.

    `weight_formats` are the formats of weights that it computes with, None for all of them. A weight in one of them
    comes in the kernel's pack for that input, of which a function gets the bytes, uint8 [nbytes]; a kernel without a
    pack, native or not, gets its values as float32.

    `arithmetic` is the dtype whose peak rate bounds its operations where that is not F, as with activations that are
    quantised on the way.

    `is_batch_invariant` promises that a row's results have the same bits whatever the other rows of a call are, and
    however many: only kernels that do are chosen with `deterministic=True`, and the conformance kit tries it.

    `rounds_weights` says that weights in a format may be rounded to F, each by itself, before they are multiplied.

    `provider` is the package that it comes from, for messages: the registry fills it in.
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

    def __post_init__(self) -> None:
        assert (self.native is None) != (self.function is None), (
            f"kernel {self.name} must be native or a function, not both"
        )

    @property
    def title(self) -> str:
        """`'name' for linear of my-package`, as messages name a kernel."""
        return f"{self.name!r} for {self.operator}" + (f" of {self.provider}" if self.provider else "")

    def failure(self, error: Exception) -> KernelError:
        """What to raise where its function raised `error`, which is no AetherMindError."""
        return KernelError(f"Kernel {self.title} raised {in_words(error)} {REPAIR}")

    def call(self, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Attribute]) -> None:
        """Run a Python kernel over its arrays; KernelError names it and its package where it fails.

        A kernel that returns something computed into arrays of its own, which nobody reads: that is an error, too.
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
