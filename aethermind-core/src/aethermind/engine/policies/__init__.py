"""Scheduling policies: who goes first, who gives way, who is let in."""

from __future__ import annotations

from aethermind.engine.policies.base import OrderKey, SchedulingPolicy
from aethermind.engine.policies.fcfs import FirstComeFirstServed
from aethermind.engine.policies.priority import PriorityWithAging

__all__ = ["FirstComeFirstServed", "OrderKey", "PriorityWithAging", "SchedulingPolicy"]
