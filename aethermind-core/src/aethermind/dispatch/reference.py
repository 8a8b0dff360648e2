"""Operators computed by their NumPy references, which kernel tests compare with, and the kernels of device `numpy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aethermind.dispatch.kernel import Kernel
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.ops.schema import Attribute, TensorType

__all__ = ["ReferenceRunner", "evaluate", "reference_kernels", "rounded_inputs"]

Array = NDArray[Any]

_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})


class ReferenceRunner:
    """An OpBuilder whose values are NumPy arrays: it computes operators instead of recording them.

    Floats narrower than float32 are computed in float32, and the outputs of every operator are rounded to the dtypes of
    its schema. If an input is float64, float outputs are float64 and are not rounded.
    """

    def __init__(self, operators: OperatorRegistry) -> None:
        self._operators = operators

    def op(self, name: str, *inputs: Array | None, **attributes: Attribute) -> Any:
        """Apply an operator; return its output, or a tuple where it has several.

        Trailing absent inputs may be omitted. OperatorError when the operator is unknown or the inputs do not fit its
        schema.
        """
        operator = self._operators[name]
        schema = operator.schema
        inputs += (None,) * (len(schema.inputs) - len(inputs))
        completed = schema.complete(attributes)
        has_float64 = any(array is not None and array.dtype == np.float64 for array in inputs)
        types = schema.infer([_type_of(array) for array in inputs], completed)
        if operator.reference is not None:
            results = operator.reference(*_widened_inputs(operator, inputs), **completed)
        else:
            assert operator.decompose is not None, f"operator {name} has neither a reference nor a decomposition"
            results = operator.decompose(self, *inputs, **completed)
        outputs = tuple(
            _rounded_output(result, type_, has_float64) for result, type_ in zip(_as_tuple(results), types, strict=True)
        )
        return outputs if len(outputs) > 1 else outputs[0]


def evaluate(
    operators: OperatorRegistry,
    operator: Operator,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Attribute],
    compute: DTypeLike = np.float64,
) -> tuple[Array, ...]:
    """Return the outputs of one call, computed and returned in `compute` (float64 or float32) for every float.

    OperatorError when inputs do not fit the schema.
    """
    converted = [None if array is None else _cast_floats(array, np.dtype(compute)) for array in inputs]
    return _as_tuple(ReferenceRunner(operators).op(operator.name, *converted, **attributes))


def rounded_inputs(operator: Operator, sample: Sample, float_type: DType) -> tuple[Array | None, ...]:
    """Return copies of a sample's arrays, rounded to the dtypes of the schema when F is `float_type`."""
    with np.errstate(over="ignore"):  # a value beyond the dtype is infinite
        return tuple(
            None
            if array is None
            else np.array(array, dtype=array.dtype if spec.kind == "q8" else spec.dtype(float_type).numpy, order="C")
            for spec, array in zip(operator.schema.inputs, sample.inputs, strict=True)
        )


def reference_kernels(operators: Iterable[Operator], device_type: str) -> list[Kernel]:
    """Return a kernel of priority 0 for each operator that has no decomposition and is not a view.

    Where it is not batch invariant, there is a second one, of priority -1, which is.
    """
    kernels = []
    for operator in operators:
        if operator.decompose is not None or operator.schema.is_view:
            continue
        references = [("reference", 0, operator.reference, operator.by_row is None)]
        if operator.by_row is not None:
            references.append(("reference by row", -1, operator.by_row, True))
        kernels += [
            Kernel(
                operator.name,
                device_type,
                name,
                _DTYPES,
                priority,
                function=_kernel_function(operator, reference),
                weight_formats=None,
                is_batch_invariant=is_batch_invariant,
                additions=frozenset(operator.additions),
            )
            for name, priority, reference, is_batch_invariant in references
        ]
    return kernels


def _kernel_function(
    operator: Operator, reference: Callable[..., Any] | None
) -> Callable[[Sequence[Array | None], Sequence[Array], Mapping[str, Attribute]], None]:
    update = operator.update

    def compute(inputs: Sequence[Array | None], outputs: Sequence[Array], attributes: Mapping[str, Attribute]) -> None:
        assert reference is not None
        results = _as_tuple(reference(*_widened_inputs(operator, inputs), **attributes))
        for output, result in zip(outputs, results, strict=True):
            output[...] = result

    def update_in_place(
        inputs: Sequence[Array | None], outputs: Sequence[Array], attributes: Mapping[str, Attribute]
    ) -> None:
        assert update is not None
        update(_widened_inputs(operator, inputs), outputs, **attributes)

    return compute if update is None else update_in_place


def _widened_inputs(operator: Operator, inputs: Sequence[Array | None]) -> list[Array | None]:
    """Return the inputs with narrow floats widened to float32, except those that the operator gathers from."""
    return [
        array
        if array is None or array.itemsize >= 4 or spec.name in operator.gathered
        else _cast_floats(array, np.dtype(np.float32))
        for spec, array in zip(operator.schema.inputs, inputs, strict=True)
    ]


def _cast_floats(array: Array, dtype: np.dtype[Any]) -> Array:
    return array.astype(dtype, copy=False) if DType.of_numpy(array.dtype).is_floating else array


def _type_of(array: Array | None) -> TensorType | None:
    if array is None:
        return None
    dtype = DType.of_numpy(array.dtype)
    return TensorType(DType.FLOAT32 if dtype is DType.FLOAT64 else dtype, array.shape)


def _rounded_output(result: Array, type_: TensorType, has_float64: bool) -> Array:
    assert result.shape == type_.shape, f"a reference returned {result.shape} where its schema says {type_}"
    dtype = DType.FLOAT64 if has_float64 and type_.dtype.is_floating else type_.dtype
    return result.astype(dtype.numpy, copy=False)


def _as_tuple(results: Any) -> tuple[Array, ...]:
    return results if isinstance(results, tuple) else (results,)
