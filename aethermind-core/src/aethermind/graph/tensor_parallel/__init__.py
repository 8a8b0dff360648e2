"""One model on several ranks: which part of it each has, its graph, and the operators in which ranks meet."""

from aethermind.graph.tensor_parallel.kernels import CollectiveKernels, HostCollectives
from aethermind.graph.tensor_parallel.operators import with_collectives
from aethermind.graph.tensor_parallel.share import Share, WeightPart
from aethermind.graph.tensor_parallel.split import SplitGraph, split_graph, without_results

__all__ = [
    "CollectiveKernels",
    "HostCollectives",
    "Share",
    "SplitGraph",
    "WeightPart",
    "split_graph",
    "with_collectives",
    "without_results",
]
