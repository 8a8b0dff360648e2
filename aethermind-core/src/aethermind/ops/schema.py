"""Operator schemas: signatures in one line, parsed and checked.

    rms_norm(x: F[..., D], weight: F[D]; eps: float = 1e-06) -> (out: F[..., D])

Tensors are on the left of `;`, attributes on the right.

- Types: `F` is the operator's floating-point type; `W` is a weight in any weight format, whose values have the type
  `F`; `q8` are 8-bit quantised values (codes) in one of `CODE_DTYPES`, the same for all tensors of the operator; `f32`,
  `i32`, `i64`, `i8` and `u8` are dtypes. `?` marks an optional tensor.
- Dims are the names in brackets. A name has one size in all tensors of the operator. A leading `...` is any number of
  dims, `#...` as many that are broadcast to `...`, and `reduce(...)` a function of them and of attributes
  (`ops.shape_inference`).
- Memory: an output written `k_out: F[N, K, P, C] = k_cache` is the memory of that input, changed in place; the output
  `out: F[T] ~ x` may reuse the memory of x.
- Attributes are `int`, `float`, `bool`, `ints`, a list of integers, or `dtype`; an output of the type that an attribute
  names is written `out: dtype[...]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType
from aethermind.hal.tensor import num_elements
from aethermind.ops import shape_inference
from aethermind.ops.dims import Shape, resolve

__all__ = [
    "Attribute",
    "AttributeSpec",
    "CODE_DTYPES",
    "FLOAT_DTYPES",
    "OpBuilder",
    "OperatorSchema",
    "TensorSpec",
    "TensorType",
]

Attribute = Any
"""An int, float or bool, a tuple of ints, or a DType; the schema knows which."""

CODE_DTYPES = (DType.INT8, DType.FLOAT8_E4M3FN)
"""The dtypes of rows that are quantised with one scale each, such as the heads in a quantised KV cache."""

FLOAT_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
"""The dtypes that F stands for."""

_FIXED_DTYPES = {
    "f32": DType.FLOAT32,
    "i32": DType.INT32,
    "i64": DType.INT64,
    "i8": DType.INT8,
    "u8": DType.UINT8,
}
_ATTRIBUTE_TYPES: dict[str, type[Any]] = {"int": int, "float": float, "bool": bool, "ints": tuple, "dtype": DType}
_ACCEPTED: dict[type[Any], type] = {int: Integral, float: Real}
"""The abstract types whose values are converted to an attribute's type, so that NumPy's numbers are accepted."""
_SIGNATURE = re.compile(r"^(\w+)\(([^;)]*)(?:;([^)]*))?\)\s*->\s*\((.*)\)$", re.DOTALL)
_TENSOR = re.compile(r"^(\w+):\s*(\w+)\[([^\]]*)\](\?)?(?:\s*([=~])\s*(\w+))?$")
_ATTRIBUTE = re.compile(r"^(\w+):\s*(\w+)(?:\s*=\s*(\S+))?$")


@dataclass(frozen=True, slots=True)
class TensorType:
    """The dtype and shape of a value; dims may be symbolic (`ops.dims`)."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def nbytes(self, symbols: Mapping[str, int]) -> int:
        """Return the bytes of the elements; `symbols` maps the names of symbolic dims to their sizes."""
        return num_elements(resolve(self.shape, symbols)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a schema.

    `kind` is its type as the schema writes it (F, W, q8 or a dtype), `pattern` its dims as the schema writes them.
    `alias` names the input whose memory an output is; `inplace` the one whose memory an output may reuse.
    """

    name: str
    kind: str
    pattern: tuple[str, ...]
    is_optional: bool = False
    alias: str | None = None
    inplace: str | None = None

    def dtype(
        self,
        float_type: DType,
        code_type: DType = CODE_DTYPES[0],
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
    ) -> DType:
        """Return the element type where F is `float_type` and codes are of `code_type`."""
        if self.kind in attributes:
            chosen: DType = attributes[self.kind]
            return chosen
        return code_type if self.kind == "q8" else _FIXED_DTYPES.get(self.kind, float_type)


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One attribute: its type (tuple for a list of integers), and its default, None if the attribute is required."""

    name: str
    type: type[Any]
    default: Attribute | None


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """A parsed signature."""

    name: str
    inputs: tuple[TensorSpec, ...]
    attributes: tuple[AttributeSpec, ...]
    outputs: tuple[TensorSpec, ...]
    text: str

    @classmethod
    def parse(cls, text: str) -> OperatorSchema:
        """Parse a signature; AssertionError where it is malformed, which is a programming error."""
        text = " ".join(text.split())
        match = _SIGNATURE.match(text)
        assert match, f"malformed operator signature: {text}"
        name, inputs, attributes, outputs = match.groups()
        specs = tuple(_parse_attribute(part) for part in _split(attributes or ""))
        dtypes = [spec.name for spec in specs if spec.type is DType]
        return cls(
            name,
            tuple(_parse_tensor(part) for part in _split(inputs)),
            specs,
            tuple(_parse_tensor(part, dtypes) for part in _split(outputs)),
            text,
        )

    @property
    def is_view(self) -> bool:
        """Whether the operator only changes the shape of its input, so that it needs no kernel."""
        if len(self.outputs) != 1:
            return False
        output = self.outputs[0]
        aliased = [spec for spec in self.inputs if spec.name == output.alias]
        return any(spec.kind == output.kind and spec.pattern != output.pattern for spec in aliased)

    def complete(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """Return attributes in schema order with defaults; OperatorError for an unknown, missing or mistyped one."""
        unknown = set(attributes) - {spec.name for spec in self.attributes}
        if unknown:
            raise OperatorError(f"Operator {self.name} has no attribute {sorted(unknown)[0]!r}. Signature: {self.text}")
        completed: dict[str, Attribute] = {}
        for spec in self.attributes:
            value = attributes.get(spec.name, spec.default)
            if value is None and spec.type is tuple and spec.name in attributes:
                value = ()  # as PyTorch's `dim=None`: all dims
            if value is None:
                raise OperatorError(f"Operator {self.name} needs the attribute {spec.name!r}. Signature: {self.text}")
            completed[spec.name] = self._checked(spec, value)
        return completed

    def _checked(self, spec: AttributeSpec, value: Attribute) -> Attribute:
        """Return a value converted to its attribute's type; OperatorError if it cannot be.

        An integer is accepted for a float or a list, any sequence of integers for a list, and a name for a dtype.
        """
        fits, checked = False, value
        if spec.type is DType:
            checked = next((dtype for dtype in FLOAT_DTYPES if value in (dtype, dtype.label)), value)
            fits = checked in FLOAT_DTYPES
        elif spec.type is tuple:
            checked = tuple(value) if isinstance(value, Sequence) else (value,)
            fits = all(isinstance(each, Integral) and not isinstance(each, bool) for each in checked)
            checked = tuple(map(int, checked)) if fits else checked
        elif isinstance(value, bool) or spec.type is bool:
            fits = isinstance(value, bool) and spec.type is bool
        elif isinstance(value, _ACCEPTED[spec.type]):
            fits, checked = True, spec.type(value)
        if not fits:
            names = {tuple: "ints", DType: ", ".join(map(str, FLOAT_DTYPES))}
            expected = names.get(spec.type, spec.type.__name__)
            raise OperatorError(
                f"Operator {self.name}: attribute {spec.name!r} should be of type {expected}, got {value!r}. "
                f"Signature: {self.text}"
            )
        return checked

    def infer(
        self, inputs: Sequence[TensorType | None], attributes: Mapping[str, Attribute], float_type: DType | None = None
    ) -> tuple[TensorType, ...]:
        """Return the types of the outputs; OperatorError when the inputs do not fit the signature.

        `attributes` has every attribute (see `complete`). `float_type` is F; None if an input has the type F.
        """
        if len(inputs) != len(self.inputs):
            raise OperatorError(
                f"Operator {self.name} takes {len(self.inputs)} inputs, got {len(inputs)}. Signature: {self.text}"
            )
        binding: dict[str, Any] = {}
        code_type: DType | None = None
        for spec, type in zip(self.inputs, inputs, strict=True):
            if type is None:
                if not spec.is_optional:
                    raise OperatorError(f"Operator {self.name} needs the input {spec.name!r}. Signature: {self.text}")
                continue
            if spec.kind in "FW" and type.dtype.is_floating:
                float_type = float_type or type.dtype
            if spec.kind == "q8" and type.dtype in CODE_DTYPES:
                code_type = code_type or type.dtype
            expected = self._expected_dtype(spec, float_type, code_type)
            problem = (
                f"dtype should be {expected}"
                if type.dtype is not expected
                else shape_inference.match(spec.pattern, type.shape, binding)
            )
            if problem:
                raise OperatorError(
                    f"Operator {self.name}: input {spec.name!r} is {type}, but {problem}. Signature: {self.text}"
                )
        binding.update(attributes)
        dtypes = (float_type or DType.FLOAT32, code_type or CODE_DTYPES[0])
        try:
            shapes = [shape_inference.evaluate(spec.pattern, binding) for spec in self.outputs]
        except OperatorError as error:
            raise OperatorError(f"Operator {self.name}: {error} Signature: {self.text}") from None
        return tuple(
            TensorType(spec.dtype(*dtypes, attributes), shape) for spec, shape in zip(self.outputs, shapes, strict=True)
        )

    @staticmethod
    def _expected_dtype(spec: TensorSpec, float_type: DType | None, code_type: DType | None) -> DType | str:
        """Return what an input's dtype should be, or a description of it if no earlier input determines F or q8."""
        if spec.kind == "q8":
            return code_type or " or ".join(map(str, CODE_DTYPES))
        return spec.dtype(float_type) if float_type else _FIXED_DTYPES.get(spec.kind, "a floating-point type")

    def float_type(self, inputs: Sequence[TensorType | None]) -> DType:
        """Return the dtype of F for these inputs (float32 if the operator has no F)."""
        for spec, type in zip(self.inputs, inputs, strict=True):
            if type is not None and spec.kind in "FW":
                return type.dtype
        return DType.FLOAT32


V_contra = TypeVar("V_contra", contravariant=True)


class OpBuilder(Protocol[V_contra]):
    """The interface through which decompositions apply operators: to values of a graph, or to arrays at once."""

    def op(self, name: str, *inputs: V_contra | None, **attributes: Attribute) -> Any:
        """Apply an operator; return its output, or a tuple where it has several."""


def _split(text: str) -> list[str]:
    """Split at the commas that are not in brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _parse_tensor(text: str, dtypes: Sequence[str] = ()) -> TensorSpec:
    found = _TENSOR.match(text)
    assert found, f"malformed tensor in an operator signature: {text}"
    name, kind, pattern, optional, relation, other = found.groups()
    assert kind in "FW" or kind == "q8" or kind in _FIXED_DTYPES or kind in dtypes, (
        f"unknown tensor kind {kind!r} in: {text}"
    )
    return TensorSpec(
        name,
        kind,
        tuple(part.strip() for part in pattern.split(",") if part.strip()),
        optional is not None,
        alias=other if relation == "=" else None,
        inplace=other if relation == "~" else None,
    )


def _parse_attribute(text: str) -> AttributeSpec:
    match = _ATTRIBUTE.match(text)
    assert match, f"malformed attribute in an operator signature: {text}"
    name, type_name, default = match.groups()
    type = _ATTRIBUTE_TYPES[type_name]
    if default is None:
        return AttributeSpec(name, type, None)
    if type is tuple:
        return AttributeSpec(name, type, tuple(int(each) for each in default.strip("[]").split(",") if each))
    return AttributeSpec(name, type, (default == "True") if type is bool else type(default))
