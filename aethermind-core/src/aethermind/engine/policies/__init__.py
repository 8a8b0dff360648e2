"""Scheduling policies: who goes first, who gives way, who is let in."""

from __future__ import annotations

from aethermind.engine.policies.base import (
    OrderKey,
    SchedulingPolicy,
    SharingPolicy,
    estimated_work_s,
    fits_now,
    ignored_options,
)
from aethermind.engine.policies.deadline import EarliestDeadline
from aethermind.engine.policies.fair import FairShare
from aethermind.engine.policies.fcfs import FirstComeFirstServed
from aethermind.engine.policies.priority import PriorityWithAging
from aethermind.engine.policies.shortest import ShortestFirst
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
    "estimated_work_s",
    "fits_now",
    "ignored_options",
]
