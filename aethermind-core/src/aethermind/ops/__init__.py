"""What an operator means: its schema, and a catalog of pages with reference, samples and decomposition."""

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
