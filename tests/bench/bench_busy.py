"""What programs that never sleep, one for each core, cost sixteen requests, in turns with a machine without them.

make bench
MODEL=DIR python -m pytest tests/bench/bench_busy.py -s -q -o python_files='bench_*.py' -o python_functions='bench_*'

DIR holds config.json and a tokenizer; weights are random. `ROUNDS` is how many turns there are. A scheduler that is
fair leaves half.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from typing import Any

from tests.bench.bench_server import MODEL, NUM_REQUESTS, NUM_TOKENS, generated_s

from aethermind import LLM

NUM_ROUNDS = int(os.environ.get("ROUNDS", "5"))


def bench_a_busy_machine() -> None:
    """Print tokens a second alone and beside the programs, and the median of the ratios."""
    options: dict[str, Any] = {} if MODEL == "demo" else {"load_format": "dummy", "quantization": "int8"}
    alone, beside = [], []
    with LLM(MODEL, max_model_len=256, max_num_seqs=NUM_REQUESTS, **options) as llm:
        generated_s(llm, 0)
        for turn in range(1, 2 * NUM_ROUNDS, 2):
            alone.append(generated_s(llm, turn))
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
            try:
                generated_s(llm, 2 * NUM_ROUNDS + turn)  # until all of them run
                beside.append(generated_s(llm, turn + 1))
            finally:
                for other in others:
                    other.kill()
                    other.wait()
    rate = NUM_REQUESTS * NUM_TOKENS
    shares = [quiet / busy for quiet, busy in zip(alone, beside, strict=True)]
    print(
        f"\nalone {rate / median(alone):.0f} tokens/s, beside the programs {rate / median(beside):.0f}: "
        f"{median(shares) * 100:.0f} % ({', '.join(f'{share * 100:.0f}' for share in shares)})"
    )
