"""What the time from process start to the first token is made of.

make bench
"""

from __future__ import annotations

import os
import subprocess
import sys

PARTS = """
import time
marks, last = [], time.perf_counter()
def mark(name):
    global last
    now = time.perf_counter()
    marks.append(f"{name} {(now - last) * 1e3:.0f} ms")
    last = now
import aethermind.cli.app
mark("command line")
import numpy
mark("NumPy")
import aethermind.llm
mark("engine's modules")
from aethermind.engine.config import EngineConfig
from aethermind.engine.engine import Engine
from aethermind.engine.parts import EngineParts
from aethermind.runtime import Runtime
runtime = Runtime.boot()
mark("plugins")
runtime.operators
mark("operator pages")
parts = EngineParts.of(runtime, "demo", EngineConfig(max_num_seqs=1))
mark("device and graph")
tokenizer = parts.compiled.source.tokenizer()
mark("tokenizer")
engine = Engine(parts, tokenizer)
mark("weights and memory")
engine.add_request("0", tokenizer.encode("Once upon a time"), aethermind.llm.SamplingParams(max_tokens=1))
assert len(engine.step()) == 1
mark("first step")
print(", ".join(marks))
"""


def bench_parts_of_the_start() -> None:
    """Print the milliseconds of each part, three processes one after another; the first may have to compile modules."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(3):
        command = [sys.executable, "-c", PARTS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        print("\n" + done.stdout)
