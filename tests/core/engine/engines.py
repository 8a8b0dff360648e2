"""Small engines of the demo model."""

from __future__ import annotations

from typing import Any

from aethermind import Runtime
from aethermind.engine.engine import Engine
from aethermind.engine.parts import EngineParts
from aethermind.sampling.params import SamplingParams

__all__ = ["answer", "open_engine"]


def open_engine(runtime: Runtime, device: str = "numpy", **options: Any) -> Engine:
    """The demo model with a context of 32 tokens, by default in float32."""
    parts = EngineParts.of(runtime, "demo", **{"device": device, "dtype": "float32", "max_model_len": 32, **options})
    return Engine(parts, parts.compiled.source.tokenizer())


def answer(engine: Engine, prompt_token_ids: list[int], num_tokens: int) -> list[int]:
    """The greedy continuation of a prompt."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    engine.add_request("answer", prompt_token_ids, params)
    while engine.has_unfinished:
        outputs = engine.step()
    (output,) = outputs
    return output.outputs[0].token_ids
