"""Real traces through the real scheduler on a virtual clock: what a policy would have done to whom."""

from __future__ import annotations

from aethermind.engine.simulation.cost_model import StepCosts, read_costs
from aethermind.engine.simulation.metrics import Report, jain_index, percentile
from aethermind.engine.simulation.simulator import RequestRecord, Simulation, simulate
from aethermind.engine.simulation.trace import HASH_BLOCK_TOKENS, TraceRequest, read_trace
from aethermind.engine.simulation.workload import complete

__all__ = [
    "HASH_BLOCK_TOKENS",
    "Report",
    "RequestRecord",
    "Simulation",
    "StepCosts",
    "TraceRequest",
    "complete",
    "jain_index",
    "percentile",
    "read_costs",
    "read_trace",
    "simulate",
]
