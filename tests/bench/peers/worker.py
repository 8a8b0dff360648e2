"""The processes that measure: started, given one job at a time, and stopped while others work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tests.bench.peers.roster import Contestant

__all__ = ["EngineError", "Worker", "start_to_first_token"]


class EngineError(Exception):
    """An engine could not do a job; the message is its own last word."""


class Worker:
    """One engine's process, which keeps its model.

    It is stopped except while a job of its own runs: thread pools that spin while they wait would slow others down.
    """

    def __init__(self, contestant: Contestant, max_context: int, max_batch: int) -> None:
        command = [*contestant.command, "--max-context", str(max_context), "--max-batch", str(max_batch)]
        # A file, because a pipe that nobody empties would stop the engine.
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **contestant.environment},
        )
        self._read()
        self._process.send_signal(signal.SIGSTOP)

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Do one job and give its answer."""
        self._process.send_signal(signal.SIGCONT)
        try:
            assert self._process.stdin
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            return self._read()
        except BrokenPipeError:
            raise EngineError("the process ended") from None
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise EngineError(self._errors.read().strip().rpartition("\n")[2] or f"exit {self._process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer


def start_to_first_token(contestant: Contestant) -> float:
    """Seconds from the start of a process to its end, or to its answer, after one token of a short prompt."""
    started = time.perf_counter()
    if contestant.start_command is None:
        with Worker(contestant, max_context=2304, max_batch=1) as worker:
            worker.run({"measure": "prefill", "tokens": 4, "nonce": 0})
            return time.perf_counter() - started
    environment = {**os.environ, **contestant.environment}
    done = subprocess.run(
        contestant.start_command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
    )
    if done.returncode != 0:
        raise EngineError(done.stderr.strip().rpartition("\n")[2])
    return time.perf_counter() - started
