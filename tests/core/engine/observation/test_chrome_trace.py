"""Traces: spans that do not overlap, inside their steps, and counters at the moments that were measured."""

from __future__ import annotations

import json

import pytest

from aethermind.engine.observation.profiler import CallProfile, MemoryUse, StepProfile, chrome_trace
from aethermind.engine.observation.roofline import Work
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Cost

CALLS = (
    CallProfile("embedding", "embedding", "k/1", None, ("int32[2]",), 0.5, Cost(1, 2, 3), Work(0, 0, DType.FLOAT32)),
    CallProfile("layers.0.silu", "silu", "k/2", 0, ("float32[2,4]",), 0.25, Cost(4, 5, 6), Work(0, 0, DType.FLOAT32)),
)
STEPS = (StepProfile("prefill", 2, 2, CALLS, 0.8, 0.7), StepProfile("decode", 1, 3, CALLS, 0.8, 0.6))
MEMORY = (
    (0, MemoryUse("loaded", 1, 2, 3, 4, 5, 6, None)),
    (1, MemoryUse("after prefill", 1, 2, 3, 4, 5, 6, 700)),
)


@pytest.fixture
def events() -> list[dict[str, object]]:
    trace = json.loads(json.dumps(chrome_trace(STEPS, MEMORY, "cpu:0")))
    found: list[dict[str, object]] = trace["traceEvents"]
    return found


def test_calls_are_consecutive_within_their_steps(events: list[dict[str, object]]) -> None:
    spans = [(event["cat"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert [span[1:] for span in spans if span[0] == "kernel"] == [
        ("embedding", 0, 5e5),
        ("silu", 5e5, 2.5e5),
        ("embedding", 7.5e5, 5e5),
        ("silu", 12.5e5, 2.5e5),
    ]
    assert [span[1:] for span in spans if span[0] == "step"] == [("prefill", 0, 7.5e5), ("decode", 7.5e5, 7.5e5)]
    assert len({(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}) == 2


def test_a_call_carries_shapes_kernel_and_cost(events: list[dict[str, object]]) -> None:
    silu = next(event for event in events if event["name"] == "silu")
    assert silu["args"] == {
        "value": "layers.0.silu",
        "kernel": "k/2",
        "layer": 0,
        "inputs": ["float32[2,4]"],
        "bytes_read": 4,
        "bytes_written": 5,
        "flops": 6,
    }


def test_memory_is_counted_by_category(events: list[dict[str, object]]) -> None:
    counters = [(event["name"], event["ts"], event["args"]) for event in events if event["ph"] == "C"]
    categories = {"weights": 1, "packed_weights": 2, "kv_cache": 3, "activations": 4, "inputs": 5, "other": 6}
    assert counters == [
        ("memory", 0, categories),
        ("memory", 7.5e5, categories),
        ("resident memory of the process", 7.5e5, {"bytes": 700}),
    ]
