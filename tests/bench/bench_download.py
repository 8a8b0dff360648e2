"""The time from the last byte of a model's download to its first token, from a stand-in for the Hub on loopback.

    python -m tests.bench.bench_download MODEL [--rounds 4]

Each round is a process of `aethermind generate` with empty caches: nothing is packed and no tokenizer is cached.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.hub_server import HubServer, Repo

__all__ = ["main"]


def seconds_after_download(hub: HubServer, name: str) -> float:
    """Download and run a model; the weights have arrived when their file was last written to."""
    with tempfile.TemporaryDirectory() as home:
        caches = {"HF_HOME": home, "HF_ENDPOINT": hub.endpoint, "XDG_CACHE_HOME": home, "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "aethermind", "generate", "Once upon a time", "--model", name]
        with subprocess.Popen(
            [*command, "--max-tokens", "8", "--weight-cache", "0"],
            env=os.environ | caches,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            first_token = time.time()
            process.communicate()
        if process.returncode:
            raise SystemExit(f"aethermind generate ended with {process.returncode}")
        blobs = Path(home).glob("hub/models--*/blobs/*")
        return first_token - max(blob.stat().st_mtime for blob in blobs if blob.is_file())


def main() -> None:
    """Measure, and print the seconds of each round."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, help="a directory with safetensors, or a .gguf file")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    paths = [options.model] if options.model.is_file() else options.model.iterdir()
    files = {path.name: path.read_bytes() for path in paths if path.is_file()}
    with HubServer() as hub:
        hub.repos["org/model"] = Repo(files)
        for _ in range(options.rounds):
            print(f"{seconds_after_download(hub, 'org/model'):.2f} s", flush=True)


if __name__ == "__main__":
    main()
