"""The time of a server to switch between two models of which one may be loaded, whose packed weights are on disk.

    python -m tests.bench.bench_switch MODEL [--rounds 6]

The models are one directory under two names. A round asks the one that is not loaded for a token, so its seconds are
those of stopping an engine, loading the other model in the spare process, and computing a token. The server starts the
next spare process some seconds later, so rounds are that far apart. The client is open before the clock starts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
from tests.soak.server import Server, started

__all__ = ["main"]

_NAMES = "first", "second"
_WAIT_S = 30.0
"""For the thread that writes packed weights once a model is idle."""

_PAUSE_S = 8.0
"""Until the next spare process is there."""


def seconds_to_first_token(server: Server, name: str) -> float:
    """Ask a model for a token."""
    body = {"model": name, "prompt": "Once upon a time", "max_tokens": 1, "temperature": 0}
    with httpx.Client(base_url=server.url, timeout=120) as client:
        began = time.perf_counter()
        client.post("/v1/completions", json=body).raise_for_status()
        return time.perf_counter() - began


def main() -> None:
    """Measure, and print the seconds of each round."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, help="a directory with safetensors")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in _NAMES:
            target = Path(folder) / name
            target.mkdir()
            for path in options.model.iterdir():
                (target / path.name).symlink_to(path.resolve())
        with started(["--models-dir", folder, "--models-max", "1", "--max-model-len", "2048"]) as server:
            for name in _NAMES:
                seconds_to_first_token(server, name)
                time.sleep(_WAIT_S)
            seconds = []
            for number in range(options.rounds):
                time.sleep(_PAUSE_S)
                seconds.append(seconds_to_first_token(server, _NAMES[number % 2]))
                print(f"{seconds[-1]:.2f} s", flush=True)
            print(f"least {min(seconds):.2f} s, median {median(seconds):.2f} s, most {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
