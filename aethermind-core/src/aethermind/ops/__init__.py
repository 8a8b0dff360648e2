"""Operators: schema, reference, samples, tolerances and decomposition; `ops.catalog` has those of the core."""

from aethermind.ops.dims import SymDim, resolve
from aethermind.ops.operator import Operator, OperatorRegistry, Sample, Tolerance
from aethermind.ops.schema import OpBuilder, OperatorSchema, TensorType

__all__ = [
    "OpBuilder",
    "Operator",
    "OperatorRegistry",
    "OperatorSchema",
    "Sample",
    "SymDim",
    "TensorType",
    "Tolerance",
    "resolve",
]
