"""Memory by category: what the engine's parts say, and nothing left over."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import answer, open_engine

from aethermind import Runtime
from aethermind.engine.observation.profiler import measure_memory


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_categories_are_those_of_the_parts(runtime: Runtime, device: str) -> None:
    engine = open_engine(runtime, device)
    use = measure_memory("loaded", engine.compiled, engine.runner)
    runner, plan = engine.runner, engine.compiled.step.plan
    assert use.moment == "loaded"
    assert use.weights + use.packed_weights == runner.constants.nbytes
    assert (use.packed_weights > 0) == bool(plan.packs())
    assert use.kv_cache == runner.kv_cache_bytes > 0
    assert use.activations == plan.arena_bytes
    assert use.inputs == sum(type.nbytes(plan.symbols) for type in plan.inputs.values())
    assert use.other == 0
    answer(engine, [1, 2, 3], 3)
    after = measure_memory("after", engine.compiled, engine.runner)
    assert after.categories() == use.categories()


def test_before_loading_all_categories_are_zero(runtime: Runtime) -> None:
    compiled = open_engine(runtime).compiled
    use = measure_memory("planned", compiled)
    assert [name for name, size in use.categories().items() if size] in ([], ["other"])
