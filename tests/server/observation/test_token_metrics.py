"""The server's own histogram of inter-token latency equals that of the Prometheus library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from aethermind.server.observation.metrics import TokenCollector

BOUNDS = (0.001, 0.25, 1.0)
GAPS = st.lists(st.tuples(st.integers(1, 3), st.floats(0, 2) | st.sampled_from(BOUNDS)))


def samples(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@given(GAPS)
def test_the_inter_token_histogram_equals_that_of_the_library(gaps: list[tuple[int, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tokens = TokenCollector(BOUNDS)
    ours.register(tokens)
    name = "aethermind_inter_token_latency_seconds"
    histogram = Histogram(name, "", ["model_name"], registry=theirs, buckets=BOUNDS)
    tokens.count("m", 1, None)
    for num_new, gap in gaps:
        tokens.count("m", num_new, gap)
        for _ in range(num_new):
            histogram.labels("m").observe(gap)
    found, expected = samples(ours), samples(theirs)
    assert found.pop('aethermind_generation_tokens_total{model_name="m"}') == 1 + sum(num_new for num_new, _ in gaps)
    if gaps:
        created = f'{name}_created{{model_name="m"}}'
        assert found == pytest.approx({key: value for key, value in expected.items() if key != created})
