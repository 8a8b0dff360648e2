"""`aethermind serve` beside llama.cpp's server: the same streams to each, in turn.

    python -m tests.bench.compare_servers --peers PEERS --model q05=CHECKPOINT --rounds 3

CHECKPOINT and PEERS are those of compare_peers; `cmake --build PEERS/llama --target llama-server` adds the server.
Both servers stay up, idle while the other works, and `aethermind bench serve` is the client of both: on the same
cores, every token an event, prompts that neither has seen. Times are medians over requests, and a ratio is the median
of the ratios within rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from tests.bench.peers.roster import PRECISIONS
from tests.soak.server import started

OURS: dict[str, list[str]] = {
    "bf16": [],
    "int8": ["--quantization", "int8"],
    "int4": ["--quantization", "int4", "--lm-head-quantization", "int8"],
}
LLAMA = {"bf16": "bf16", "int8": "Q8_0", "int4": "Q4_0"}
PROMPT_TOKENS = 128
OUTPUT_TOKENS = 128
CONTEXT = 512
LLAMA_PORT = 8089


def main() -> None:
    """Measure what is asked for, and print a row for each precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="the folder that compare_peers describes")
    parser.add_argument("--model", required=True, metavar="NAME=DIR", help="a checkpoint, and its name in PEERS/models")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--streams", type=int, default=16, help="requests at a time (default: 16)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine (default: 2)")
    arguments = parser.parse_args()
    name, _, checkpoint = arguments.model.partition("=")
    if not checkpoint:
        parser.error(f"--model is {arguments.model!r} but should be NAME=DIR, such as q05=./Qwen2-0.5B.")
    print("| | tokens/s | llama-server | ratio | first token | llama-server | between tokens | llama-server |")
    print("|---|---|---|---|---|---|---|---|")
    for precision in arguments.precisions:
        gguf = arguments.peers / f"models/{name}-llama-{LLAMA[precision]}.gguf"
        print(_row(precision, _compared(precision, Path(checkpoint), gguf, arguments)), flush=True)


def _compared(
    precision: str, checkpoint: Path, gguf: Path, arguments: argparse.Namespace
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the client saw of us and of them, in each round; the first round, which warms up, is left out."""
    streams, threads = str(arguments.streams), str(arguments.threads)
    flags = ["--model", str(checkpoint), "--max-num-seqs", streams, "--max-model-len", str(CONTEXT)]
    with ExitStack() as stack:
        ours = stack.enter_context(started([*flags, "--threads", threads, *OURS[precision]]))
        program = arguments.peers / "llama/bin/llama-server"
        command = [
            program,
            "-m",
            gguf,
            "-np",
            streams,
            "-c",
            CONTEXT * arguments.streams,
            "-t",
            threads,
            "-tb",
            threads,
        ]
        theirs = stack.enter_context(_llama_server([str(part) for part in command]))
        rounds = []
        for turn in range(arguments.rounds + 1):
            seen = {url: _measured(url, arguments.streams, turn) for url in _in_turns([ours.url, theirs], turn)}
            rounds.append((seen[ours.url], seen[theirs]))
    return rounds[1:]


def _in_turns(urls: Sequence[str], turn: int) -> Sequence[str]:
    return urls if turn % 2 else urls[::-1]


@contextmanager
def _llama_server(command: Sequence[str]) -> Iterator[str]:
    """The address of llama.cpp's server once its model is loaded."""
    url = f"http://127.0.0.1:{LLAMA_PORT}"
    with subprocess.Popen(
        [*command, "--port", str(LLAMA_PORT)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while not _answers(url):
                if process.poll() is not None:
                    raise SystemExit(f"llama.cpp's server did not start: {' '.join(command)}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _measured(url: str, streams: int, turn: int) -> dict[str, Any]:
    """One run of the client; its report."""
    command = [sys.executable, "-m", "aethermind", "bench", "serve", "--url", url, "--json", "--seed", str(turn)]
    command += ["--concurrency", str(streams), "--num-prompts", str(2 * streams)]
    command += ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)]
    report: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if report["failures"]:
        raise SystemExit(f"{url} failed: {report['failures']}")
    return report


def _row(precision: str, rounds: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    def medians(*path: str) -> tuple[float, float]:
        ours, theirs = zip(*([_at(one, path) for one in pair] for pair in rounds), strict=True)
        return median(ours), median(theirs)

    ratios = [_at(ours, _RATE) / _at(theirs, _RATE) for ours, theirs in rounds]
    rate, first, between = medians(*_RATE), medians("ttft", "p50"), medians("itl", "p50")
    spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return (
        f"| {precision} | {rate[0]:.0f} | {rate[1]:.0f} | **{median(ratios):.2f} ×** ({spread}) | {first[0]:.2f} s | "
        f"{first[1]:.2f} s | {between[0] * 1e3:.0f} ms | {between[1] * 1e3:.0f} ms |"
    )


_RATE = ("output_tokens_per_s",)


def _at(report: dict[str, Any], path: Sequence[str]) -> float:
    value: Any = report
    for name in path:
        value = value[name]
    return float(value)


if __name__ == "__main__":
    main()
