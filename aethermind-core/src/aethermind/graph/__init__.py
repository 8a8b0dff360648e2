"""Graphs and plans: a model is a graph in SSA form, which is lowered, placed in memory and bound to kernels."""

from typing import Any

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import Compiled, compile_graph
from aethermind.graph.executor import (
    Executable,
    MemoryMap,
    PlanExecutor,
    StepLoop,
    TimedExecutable,
    addresses_in_run,
    array_at,
)
from aethermind.graph.ir import Graph, Node, Value
from aethermind.graph.plan import BATCH_SIZES, Operand, Place, Plan, Step, is_decode_size

__all__ = [
    "BATCH_SIZES",
    "Compiled",
    "Executable",
    "Graph",
    "GraphBuilder",
    "MemoryMap",
    "Node",
    "Operand",
    "Place",
    "Plan",
    "PlanExecutor",
    "Step",
    "StepLoop",
    "TimedExecutable",
    "Value",
    "addresses_in_run",
    "array_at",
    "compile_graph",
    "is_decode_size",
]


def __getattr__(name: str) -> Any:
    """Resolve names that were renamed; using one is deprecated (see docs/extending/stability.md)."""
    if name != "Executor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aethermind.plugins.compatibility import deprecated

    deprecated("aethermind.graph.Executor", instead="aethermind.graph.PlanExecutor", until="0.4")
    return PlanExecutor
