"""Sixteen requests over HTTP against the same sixteen in `LLM.generate`, in turns: what serving costs.

make bench
MODEL=DIR python -m pytest tests/bench/bench_server.py -s -q -o python_files='bench_*.py' -o python_functions='bench_*'

DIR holds config.json and a tokenizer; weights are random. Client, server and engine share the machine's cores. Each is
measured with streams, where every token is an event, and with whole answers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

from tests.soak.client import ask
from tests.soak.server import Server, started

from aethermind import LLM, SamplingParams

MODEL = os.environ.get("MODEL", "demo")
NUM_REQUESTS = 16
NUM_PROMPT_TOKENS = 32
NUM_TOKENS = 64 if MODEL != "demo" else 192
NUM_ROUNDS = int(os.environ.get("ROUNDS", "5"))


def bench_the_server() -> None:
    """Print the engine's own tokens a second, and each server's share of them: the median over the rounds."""
    is_demo = MODEL == "demo"
    options: dict[str, Any] = {} if is_demo else {"load_format": "dummy", "quantization": "int8"}
    flags = [] if is_demo else ["--model", MODEL, "--load-format", "dummy", "--quantization", "int8"]
    flags += ["--max-model-len", "256", "--max-num-seqs", str(NUM_REQUESTS)]
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        settings: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": NUM_REQUESTS}
        llm = stack.enter_context(LLM(MODEL, **settings, **options))
        servers = {engine: stack.enter_context(started([*flags, "--engine", engine])) for engine in _ENGINES}
        gc.freeze()  # what the tests have loaded is no part of a client, nor of an engine
        for turn in range(NUM_ROUNDS + 1):  # the first warms up
            seconds = {"the engine's own": generated_s(llm, turn)}
            for engine, server in servers.items():
                for is_stream in (True, False):
                    name = f"{engine}, {'streams' if is_stream else 'whole answers'}"
                    seconds[name] = asyncio.run(served_s(server, 2 * turn + is_stream, is_stream=is_stream))
            if turn:
                for name, one in seconds.items():
                    rates.setdefault(name, []).append(NUM_REQUESTS * NUM_TOKENS / one)
    own = rates["the engine's own"]
    print()
    for name, values in rates.items():
        shares = [value / best for value, best in zip(values, own, strict=True)]
        print(
            f"{name:28} {median(values):8.1f} tokens/s  {median(shares) * 100:5.1f} %  "
            f"({', '.join(f'{share * 100:.0f}' for share in shares)})"
        )


_ENGINES = ("process", "inprocess")


def prompts(turn: int) -> list[list[int]]:
    """Token ids of sixteen prompts that nobody has computed before."""
    rows = range(turn * NUM_REQUESTS, (turn + 1) * NUM_REQUESTS)
    return [[7 + (31 * row + (1 + row // 500) * index) % 500 for index in range(NUM_PROMPT_TOKENS)] for row in rows]


def generated_s(llm: LLM, turn: int) -> float:
    """Seconds until `LLM.generate` has answered all."""
    asked: list[Any] = [{"prompt_token_ids": one} for one in prompts(turn)]
    begin_s = time.perf_counter()
    llm.generate(asked, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True))
    return time.perf_counter() - begin_s


async def served_s(server: Server, turn: int, *, is_stream: bool) -> float:
    """Seconds until a server has answered all, each on a connection of its own."""
    wish: dict[str, Any] = {"model": server.model, "max_tokens": NUM_TOKENS, "temperature": 0.0, "ignore_eos": True}
    begin_s = time.perf_counter()
    answers = await asyncio.gather(
        *(ask(server, {**wish, "prompt": one, "stream": is_stream}) for one in prompts(turn))
    )
    seconds = time.perf_counter() - begin_s
    assert all(one.failure is None for one in answers), [one.failure for one in answers]
    return seconds
