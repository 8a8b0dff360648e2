"""Export of a profile in the format of Chrome's tracing and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.engine.observation.profiler import CallProfile, MemoryUse, StepProfile

__all__ = ["chrome_trace"]

_PID = 1
_STEPS, _KERNELS = 1, 2


def chrome_trace(steps: Sequence[StepProfile], memory: Sequence[tuple[int, MemoryUse]], device: str) -> dict[str, Any]:
    """Return steps and their calls one after the other, without the host's time between them.

    `memory` holds pairs (number of steps before it, memory use at that time).
    """
    names = (("process_name", 0, device), ("thread_name", _STEPS, "steps"), ("thread_name", _KERNELS, "kernels"))
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": _PID, "tid": tid, "name": kind, "args": {"name": name}} for kind, tid, name in names
    ]
    starts_us = [0.0]
    for step in steps:
        now = starts_us[-1]
        for call in step.calls:
            events.append(_call_event(call, now))
            now += call.seconds * 1e6
        events.append(_step_event(step, starts_us[-1], now))
        starts_us.append(now)
    events += [
        {"ph": "C", "pid": _PID, "tid": 0, "ts": starts_us[position], "name": "memory", "args": use.categories()}
        for position, use in memory
    ]
    events += [
        {
            "ph": "C",
            "pid": _PID,
            "tid": 0,
            "ts": starts_us[position],
            "name": "resident memory of the process",
            "args": {"bytes": use.resident_bytes},
        }
        for position, use in memory
        if use.resident_bytes is not None
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _call_event(call: CallProfile, start_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PID,
        "tid": _KERNELS,
        "ts": start_us,
        "dur": call.seconds * 1e6,
        "name": call.operator,
        "cat": "kernel",
        "args": {
            "value": call.name,
            "kernel": call.kernel,
            "layer": call.layer,
            "inputs": list(call.inputs),
            "bytes_read": call.cost.bytes_read,
            "bytes_written": call.cost.bytes_written,
            "flops": call.cost.flops,
        },
    }


def _step_event(step: StepProfile, start_us: float, end_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PID,
        "tid": _STEPS,
        "ts": start_us,
        "dur": end_us - start_us,
        "name": step.phase,
        "cat": "step",
        "args": {
            "num_tokens": step.num_tokens,
            "num_context_tokens": step.num_context_tokens,
            "unmarked_us": step.unmarked_s * 1e6,
        },
    }
