"""Simulation of request traces: the real scheduler and cache bookkeeping on a virtual clock, to compare policies."""

from __future__ import annotations

from aethermind.engine.simulation.cost_model import StepCosts, read_costs
from aethermind.engine.simulation.metrics import SimulationReport, jain_index, percentile
from aethermind.engine.simulation.simulator import RequestRecord, SimulationResult, simulate
from aethermind.engine.simulation.trace import HASH_BLOCK_TOKENS, TraceRequest, complete, read_trace

__all__ = [
    "HASH_BLOCK_TOKENS",
    "RequestRecord",
    "SimulationReport",
    "SimulationResult",
    "StepCosts",
    "TraceRequest",
    "complete",
    "jain_index",
    "percentile",
    "read_costs",
    "read_trace",
    "simulate",
]
