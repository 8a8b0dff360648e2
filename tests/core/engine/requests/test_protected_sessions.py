"""What protected sessions leave of the KV cache, and the error of a request that does not fit it."""

from __future__ import annotations

import pytest

from aethermind import LLM, RequestOptions, Runtime, SamplingParams
from aethermind.errors import AetherMindError


def test_an_error_names_what_protected_sessions_hold(runtime: Runtime) -> None:
    """The request fits the cache, but not beside a protected session; it runs once that is protected no more."""
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with LLM("demo", device="cpu", max_model_len=256, num_kv_blocks=16, block_size=16, runtime=runtime) as llm:
        llm.generate({"prompt_token_ids": list(range(5, 105))}, params, options=RequestOptions(session="a"))
        num_held = llm.protect_session("a").num_tokens
        request = {"prompt_token_ids": list(range(200, 380))}
        says = rf"protected sessions hold {num_held} tokens of it.*aethermind sessions protect ID --off"
        with pytest.raises(AetherMindError, match=says):
            llm.generate(request, params)
        llm.protect_session("a", is_protected=False)
        assert len(llm.generate(request, params)[0].outputs[0].token_ids) == 4
