"""A decode step of the engine on the CPU."""

from __future__ import annotations

import gc

from aethermind import LLM, SamplingParams
from aethermind_cpu import _native


def test_a_decode_step_allocates_nothing_in_native_code() -> None:
    """Counted by the extension's own `operator new`, across block boundaries."""
    llm = LLM("demo", device="cpu", block_size=4)
    prompt = llm.tokenizer.encode("Once upon a time")
    llm.engine.add_request("0", prompt, SamplingParams(temperature=0.7, top_p=0.9, max_tokens=40, ignore_eos=True))
    llm.engine.step()
    gc.collect()  # engines of other tests, whose destructors may allocate
    before = _native.allocation_count()
    assert before > 0
    for _ in range(12):
        assert len(llm.engine.step()) == 1
    assert _native.allocation_count() == before
    llm.close()
