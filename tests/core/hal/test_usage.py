"""Usage of devices is read at most once a second, and reaches the statistics of an engine."""

from __future__ import annotations

from tests.core.engine.engines import open_engine

from aethermind import Runtime
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.hal.device import DeviceUsage, UsageSampler


def test_readings_are_at_most_a_second_old() -> None:
    now, read = [0.0], []

    def usage(index: int) -> DeviceUsage | None:
        read.append(index)
        return None if index == 2 else DeviceUsage(f"gpu:{index}", len(read), 100)

    sampler = UsageSampler(usage, range(1, 4), clock=lambda: now[0])
    first = sampler.latest()
    assert [one.device for one in first] == ["gpu:1", "gpu:3"]
    now[0] = 0.99
    assert sampler.latest() == first
    now[0] = 1.0
    assert sampler.latest() != first
    assert read == [1, 2, 3] * 2


def test_the_memory_of_an_engine_is_in_its_statistics(runtime: Runtime) -> None:
    engine = open_engine(runtime, "sim")
    (usage,) = EngineStats.of(engine).device_usage
    held = engine.runner.constants.nbytes + engine.runner.kv_cache_bytes
    assert usage.device == "sim:0"
    assert held < usage.memory_used_bytes < usage.memory_total_bytes
    assert EngineStats.of(open_engine(runtime, "numpy")).device_usage == ()
