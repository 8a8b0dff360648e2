"""Rotary embeddings see distances only: a request whose text moves while it runs gives the answer it would have given.

In the three layouts: blocks of one token, of four, and of a whole context.
"""

from __future__ import annotations

import pytest
from tests.core.engine.engines import answer, open_engine

from aethermind import Runtime, SamplingParams
from aethermind.cache import CacheOutcome

PROMPT = [5, 6, 7, 8, 9, 10, 11]
SHIFTS = {3: 100, 5: -40, 9: 1000}


@pytest.mark.parametrize("block_size", [1, 4, 32])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_a_shifted_request_gives_the_same_answer(
    runtime: Runtime, device: str, block_size: int, kv_cache_dtype: str
) -> None:
    options = {"block_size": block_size, "kv_cache_dtype": kv_cache_dtype, "num_kv_blocks": 64}
    expected = answer(open_engine(runtime, device, **options), PROMPT, 16)
    engine = open_engine(runtime, device, **options)
    engine.add_request("moved", PROMPT, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True))
    num_steps = 0
    while engine.has_unfinished:
        outputs = engine.step()
        num_steps += 1
        if num_steps in SHIFTS:
            assert engine.cache.shift("moved", 0, SHIFTS[num_steps]) is CacheOutcome.OK
            so_far = sum(delta for step, delta in SHIFTS.items() if step <= num_steps)
            assert engine.cache.position("moved", 0) == so_far
    assert outputs[0].outputs[0].token_ids == expected
