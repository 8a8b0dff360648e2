"""What a model is: a graph in SSA form, lowered, placed in memory and bound to kernels as a plan."""

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import Compiled, compile_graph
from aethermind.graph.executor import (
    Executable,
    Executor,
    MemoryMap,
    StepLoop,
    TimedExecutable,
    addresses_in_run,
    array_at,
)
from aethermind.graph.ir import Graph, Node, Value
from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.graph.repeated_runs import BATCH_SIZES, is_decode_size

__all__ = [
    "BATCH_SIZES",
    "Compiled",
    "Executable",
    "Executor",
    "Graph",
    "GraphBuilder",
    "MemoryMap",
    "Node",
    "Operand",
    "Place",
    "Plan",
    "Step",
    "StepLoop",
    "TimedExecutable",
    "Value",
    "addresses_in_run",
    "array_at",
    "compile_graph",
    "is_decode_size",
]
