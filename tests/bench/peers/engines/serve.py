"""The loop in which an engine's process answers: one job a line in, one result a line out, both JSON.

It runs under the interpreter of that engine's own environment, so it needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Engine", "prompt", "serve", "timed"]

VOCAB_SIZE = 32_000
"""Token ids below this are ordinary text in every vocabulary that is compared."""


class Engine(Protocol):
    """What a process can measure: seconds of the work named and nothing else.

    `decode` and `batched` may keep the keys and values of their contexts from call to call: filling them is not
    measured. `prefill` gets a prompt that begins differently each time, so that nothing of it can be kept.
    """

    def prefill(self, tokens: int, nonce: int) -> float:
        """Seconds from a prompt of so many tokens to the first token of its answer."""

    def decode(self, context: int, tokens: int) -> float:
        """Seconds of so many steps of one request that begin after `context` tokens."""

    def batched(self, batch: int, context: int, tokens: int) -> float:
        """Seconds of so many steps of `batch` requests at a time, each with a context of its own."""


def prompt(tokens: int, nonce: int = 0) -> list[int]:
    """Token ids that differ from the first one on wherever `nonce` does."""
    return [(7919 * (index + 1) + 104_729 * (nonce + 1)) % VOCAB_SIZE for index in range(tokens)]


def timed(work: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def serve(load: Callable[[argparse.Namespace], Engine]) -> None:
    """Load the engine that the command line asks for, and answer jobs until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="what this engine made of the checkpoint")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-context", type=int, required=True, help="the most tokens that one request will hold")
    parser.add_argument("--max-batch", type=int, required=True, help="the most requests at a time")
    parser.add_argument("--options", type=json.loads, default={}, help="further settings of this engine, as JSON")
    arguments = parser.parse_args()
    # Whatever a library prints belongs on stderr: stdout speaks JSON.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = load(arguments)
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        measure = job.pop("measure")
        try:
            _answer(answers, {"seconds": getattr(engine, measure)(**job), "peak_rss_bytes": _peak_rss_bytes()})
        except Exception as error:  # a peer may fail in its own ways: the table says so and goes on
            _answer(answers, {"error": f"{type(error).__name__}: {error}".splitlines()[0]})


def _answer(stream: Any, record: dict[str, Any]) -> None:
    stream.write(json.dumps(record) + "\n")
    stream.flush()


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
