"""Strangers' code in a process of its own, where it may crash or hang without taking this one with it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

__all__ = ["ChildError", "ChildProcess", "answer_pipe", "import_path", "start_child"]


class ChildError(Exception):
    """What became of a child instead of an answer, as a verb and its object: `crashed with signal 11 (SIGSEGV)`."""


class ChildProcess:
    """A process that answers in lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        self._answers = process.stdout.fileno()

    def read_line(self, limit_s: float) -> str:
        """The next line, without its end; ChildError where it does not come within the limit, or never will."""
        deadline = time.monotonic() + limit_s
        try:
            line = self._read_until(deadline)
            if line.endswith(b"\n"):
                return line[:-1].decode()
            exit_code = self._process.wait(max(deadline - time.monotonic(), 0.1))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise ChildError(f"did not answer within {limit_s:g} s") from None
        raise ChildError(_end_in_words(exit_code))

    def _read_until(self, deadline: float) -> bytes:
        """A line, or what came before the child closed its end; TimeoutError at the deadline."""
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError
                byte = os.read(self._answers, 1)
                if not byte:
                    break
                line += byte
        return line


def import_path() -> str:
    """A PYTHONPATH with which another process imports what this one can."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


@contextlib.contextmanager
def start_child(module: str, request: object, variables: Mapping[str, str] | None = None) -> Iterator[ChildProcess]:
    """`python -m MODULE REQUEST`, which imports what this process can; it ends, with all it started, with the block.

    `variables` are added to the environment; OSError where no process can be started.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": import_path(), **(variables or {})},
        start_new_session=True,
    )
    try:
        yield ChildProcess(process)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # with whatever the plugin started
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def answer_pipe() -> int:
    """In the child: where answers go, standard output as it was; what plugins print goes to standard error from now on.

    A crash that is expected leaves no core dump.
    """
    answers = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return answers


def _end_in_words(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended its process with exit code {exit_code}"
    try:
        name = f" ({signal.Signals(-exit_code).name})"
    except ValueError:
        name = ""
    return f"crashed with signal {-exit_code}{name}"
