"""Requests that arrive while others decode, over the shapes of Qwen2-7B: prefill on one stream and on two.

python -m tests.cuda.check.stream_figures [--small]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cuda.check import qwen2_7b
from tests.cuda.check.records import CaseLog

from aethermind import LLM
from aethermind.cli.bench.prefill_stream import MixedLoad, compare_streams

__all__: list[str] = []

_LOADS = ((48, 16, 1024, 64), (96, 64, 512, 64))
"""Requests, those open at a time, tokens of a prompt, and of an answer in the mean."""
_SMALL_LOADS = ((4, 2, 32, 4),)
_REPEAT = 2


def main() -> int:
    """Load once and run every load."""
    is_small = "--small" in sys.argv
    config = qwen2_7b.SMALL_CONFIG if is_small else qwen2_7b.CONFIG
    log = CaseLog.of_environment("prefill stream")
    with TemporaryDirectory() as folder:
        llm = LLM(
            qwen2_7b.write_model(Path(folder) / "model", config),
            device="cuda",
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=128 if is_small else 2048,
            max_num_batched_tokens=64 if is_small else 2048,
            max_num_seqs=64,
            enable_prefix_caching=False,
            prefill_stream=True,
        )
        for load in _SMALL_LOADS if is_small else _LOADS:
            requests, batch, prompt_tokens, output_tokens = load
            with log.case(f"{requests} x ({prompt_tokens} + {output_tokens}), {batch} at once") as facts:
                report = compare_streams(llm.engine, MixedLoad(*load, int(config["vocab_size"])), _REPEAT)
                facts["same tokens"] = report["same_tokens"]
                for streams in ("one_stream", "two_streams"):
                    facts |= {f"{streams} {name}": round(value, 5) for name, value in report[streams].items()}
        llm.close()
    return 1 if log.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
