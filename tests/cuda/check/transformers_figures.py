"""The same shapes by transformers with a static cache: eager, and with the decode step compiled."""

from __future__ import annotations

import time
from typing import Any

from tests.cuda.check.qwen2_7b import CONFIG, PROMPT_TOKENS

__all__ = ["decode_seconds"]

_STEPS = 32


def open_model() -> Any:
    """Random weights, made on the GPU."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    options = {name: value for name, value in CONFIG.items() if name not in ("architectures", "model_type", "dtype")}
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return Qwen2ForCausalLM(Qwen2Config(**options)).eval()


def decode_seconds(model: Any, step: Any, batch: int) -> tuple[float, float]:
    """Seconds of a prefill of PROMPT_TOKENS a sequence, and of a decode step behind it (the mean of 32)."""
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=PROMPT_TOKENS + 2 * _STEPS)
    tokens = torch.randint(0, CONFIG["vocab_size"], (batch, PROMPT_TOKENS), device="cuda")
    positions = torch.arange(PROMPT_TOKENS, device="cuda")
    with torch.inference_mode():
        for is_measured in (False, True):
            cache.reset()
            torch.cuda.synchronize()
            began = time.perf_counter()
            model(tokens, past_key_values=cache, cache_position=positions, logits_to_keep=1)
            torch.cuda.synchronize()
            prefill = time.perf_counter() - began
            assert is_measured or prefill > 0
        token, position = tokens[:, :1].contiguous(), torch.tensor([PROMPT_TOKENS], device="cuda")
        for index in range(2 * _STEPS):
            if index == _STEPS:
                torch.cuda.synchronize()
                began = time.perf_counter()
            logits = step(token, past_key_values=cache, cache_position=position).logits
            token = logits[:, -1:].argmax(-1)
            position = position + 1
        torch.cuda.synchronize()
    return prefill, (time.perf_counter() - began) / _STEPS


def main() -> None:
    """Eager for batches of 1 and 8, then compiled for one, whose compilation takes its time."""
    import torch

    model = open_model()
    said = []
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    for name, step, batch in (("eager", model, 1), ("eager", model, 8), ("compiled", compiled, 1)):
        prefill, decode = decode_seconds(model, step, batch)
        said.append(f"{name} {batch}: prefill {batch * PROMPT_TOKENS / prefill:.0f}, decode {batch / decode:.0f} tok/s")
        print(said[-1], flush=True)
    print("; ".join(said))


if __name__ == "__main__":
    main()
