"""Scheduling policies: the order of admission, the choice of requests to preempt, and admission control."""

from __future__ import annotations

from aethermind.engine.policies.base import (
    OrderKey,
    SchedulingPolicy,
    SharingPolicy,
    estimated_work_s,
    fits_now,
    ignored_options,
)
from aethermind.engine.policies.ordered import (
    EarliestDeadline,
    FairShare,
    FirstComeFirstServed,
    PriorityWithAging,
    ShortestFirst,
    WeightedOrder,
)
from aethermind.engine.requests.request import Request

__all__ = [
    "EarliestDeadline",
    "FairShare",
    "FirstComeFirstServed",
    "OrderKey",
    "PriorityWithAging",
    "Request",
    "SchedulingPolicy",
    "SharingPolicy",
    "ShortestFirst",
    "WeightedOrder",
    "estimated_work_s",
    "fits_now",
    "ignored_options",
]
