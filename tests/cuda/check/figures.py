"""Prefill and decode of Qwen2-7B's shapes in bfloat16 by `aethermind bench latency`: a batch, given as argument."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cuda.check.qwen2_7b import OUTPUT_TOKENS, PROMPT_TOKENS, write_model

__all__ = ["measure"]


def measure(model: Path, batch: int) -> dict[str, object]:
    """What the command reports of one batch."""
    options = {
        "--model": str(model),
        "--load-format": "dummy",
        "--device": "cuda",
        "--dtype": "bfloat16",
        "--batch": str(batch),
        "--prompt-tokens": str(PROMPT_TOKENS if batch < 256 else PROMPT_TOKENS // 4),
        "--output-tokens": str(OUTPUT_TOKENS),
        "--max-num-batched-tokens": "4096",
        "--repeat": "3",  # the first binds kernels and captures graphs
    }
    arguments = [part for pair in options.items() for part in pair]
    command = [sys.executable, "-m", "aethermind", "bench", "latency", *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"batch {batch}: {result.stderr.strip().splitlines()[-1:]}")
    report: dict[str, object] = json.loads(result.stdout)
    return report


def main() -> None:
    """Print the report, and what is in it of speed."""
    with TemporaryDirectory() as folder:
        report = measure(write_model(Path(folder) / "qwen2-7b"), int(sys.argv[1]))
    print(json.dumps(report), flush=True)
    print(", ".join(f"{phase} {rate(report, phase)}" for phase in ("prefill", "decode")))


def rate(report: dict[str, object], phase: str) -> str:
    """Tokens per second of a phase, and the part of what the hardware allows."""
    rate, fraction = report[f"{phase}_tokens_per_s"], report[f"{phase}_limit_fraction"]
    return f"{rate:.0f} tok/s" + ("" if fraction is None else f" ({fraction:.0%})")


if __name__ == "__main__":
    main()
