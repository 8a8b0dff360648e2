"""Tensor parallelism: the graph of each rank, its shard of the weights, and collective operators."""

from aethermind.graph.tensor_parallel.collectives import CollectiveKernels, HostCollectives, with_collectives
from aethermind.graph.tensor_parallel.share import Share, StateShards, WeightShard
from aethermind.graph.tensor_parallel.split import SplitGraph, split_graph, without_outputs

__all__ = [
    "CollectiveKernels",
    "HostCollectives",
    "Share",
    "SplitGraph",
    "StateShards",
    "WeightShard",
    "split_graph",
    "with_collectives",
    "without_outputs",
]
