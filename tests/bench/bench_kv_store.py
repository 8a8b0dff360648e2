"""What a prompt of 2,000 tokens gains from a KV store that another engine has filled: the time to its first token.

make bench; MODEL=DIR takes another model than the demo, with random weights in its shapes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.redis_server import REDIS_SERVER, RedisServer

from aethermind import LLM, SamplingParams

NUM_TOKENS = 2000
MODEL = os.environ.get("MODEL", "demo")
LOAD_FORMAT = "dummy" if MODEL != "demo" else "auto"
PROMPT = {"prompt_token_ids": [7 + i * 31 % 500 for i in range(NUM_TOKENS)]}


def first_token(address: str | None, *, num_times: int = 1) -> list[tuple[int, float]]:
    """(tokens reused, seconds to the first token) of a prompt, asked so many times of one engine."""
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    found = []
    with LLM(MODEL, load_format=LOAD_FORMAT, max_model_len=NUM_TOKENS + 48, kv_store=address) as llm:
        llm.generate({"prompt_token_ids": [3] * 16}, params)
        for _ in range(num_times):
            (output,) = llm.generate(PROMPT, params)
            metrics = output.metrics
            assert metrics.first_token_s is not None
            found.append((output.num_cached_tokens, metrics.first_token_s - metrics.arrival_s))
    return found


@contextmanager
def stores() -> Iterator[dict[str, str]]:
    """Addresses of empty stores."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = {"disk": f"disk:{folder}"}
        redis = RedisServer() if REDIS_SERVER else None
        if redis is not None:
            addresses["redis"] = redis.url
        yield addresses
        if redis is not None:
            redis.stop()


def bench_first_token_from_a_store() -> None:
    """Print the time to the first token: computed, from the device's own cache, and from each store."""
    (_, cold_s), (_, device_s) = first_token(None, num_times=2)
    computed, again = f"{cold_s * 1e3:.1f} ms", f"{device_s * 1e3:.1f} ms"
    print(f"\n{NUM_TOKENS} tokens of {MODEL}: computed {computed}, asked again of the same engine {again}", end="")
    with stores() as addresses:
        for name, address in addresses.items():
            first_token(address)
            ((num_cached, seconds),) = first_token(address)
            print(
                f"; {name}: {num_cached} tokens reused, {seconds * 1e3:.1f} ms ({seconds / cold_s:.1%} of computing)",
                end="",
            )
    print()
