"""Child processes that run third-party code, which may crash or hang there, and a cache of their results."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aethermind import env
from aethermind.atomic_file import atomic_write
from aethermind.log import get_logger

__all__ = [
    "ChildError",
    "ChildProcess",
    "ProbeCache",
    "environment_fingerprint",
    "import_path",
    "result_pipe",
    "start_child",
]

logger = get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ChildError(Exception):
    """A child ended or hung before it wrote a result; the text is a predicate: `crashed with signal 11 (SIGSEGV)`."""


class ChildProcess:
    """A child process that writes its results as lines to a pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        self._pipe = process.stdout.fileno()

    def read_line(self, limit_s: float) -> str:
        """Return the next line without its end; ChildError if the child ends or the time limit passes first."""
        deadline = time.monotonic() + limit_s
        try:
            line = self._read_until(deadline)
            if line.endswith(b"\n"):
                return line[:-1].decode()
            exit_code = self._process.wait(max(deadline - time.monotonic(), 0.1))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise ChildError(f"did not answer within {limit_s:g} s") from None
        raise ChildError(_describe_exit(exit_code))

    def _read_until(self, deadline: float) -> bytes:
        """Read a line, or what came before the child closed the pipe; TimeoutError at the deadline."""
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError
                byte = os.read(self._pipe, 1)
                if not byte:
                    break
                line += byte
        return line


def import_path() -> str:
    """Return the PYTHONPATH with which another process finds the same modules as this one."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


@contextlib.contextmanager
def start_child(module: str, request: object, variables: Mapping[str, str] | None = None) -> Iterator[ChildProcess]:
    """Run `python -m MODULE REQUEST` with this process's import path; the end of the block kills its process group.

    `variables` are added to the environment. OSError if the process cannot be started.
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
            os.killpg(process.pid, signal.SIGKILL)  # with every process that the plugin started
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def result_pipe() -> int:
    """In the child: return a file descriptor for results, and redirect standard output to standard error.

    Core dumps are turned off, since crashes are expected.
    """
    pipe = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return pipe


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended its process with exit code {exit_code}"
    try:
        name = f" ({signal.Signals(-exit_code).name})"
    except ValueError:
        name = ""
    return f"crashed with signal {-exit_code}{name}"


def environment_fingerprint(version: str, files: Iterable[str]) -> str | None:
    """Return a text that changes with everything that a result depends on; None if the machine's boot id is unknown.

    It consists of the package's version, the modification times of its code (an author edits it without a new version),
    the host and its boot id, the Python installation, and the variables that hide devices or choose libraries.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return None
    modified = [_modification_time(file) for file in files]
    variables = {name: value for name, value in sorted(os.environ.items()) if _affects_devices(name)}
    return json.dumps([version, modified, boot, platform.node(), sys.prefix, platform.python_version(), variables])


class ProbeCache:
    """Results of sandboxed code by key, in the JSON file `aethermind/NAME` under XDG_CACHE_HOME or ~/.cache.

    An entry is valid for the fingerprint (see `environment_fingerprint`) with which it was stored.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def file(self) -> Path:
        """The path of the cache file."""
        return env.cache_directory() / self._name

    def get(self, key: str, fingerprint: str | None) -> dict[str, Any] | None:
        """Return the result stored for `key` with the same fingerprint, or None."""
        entry = self._read().get(key)
        is_valid = fingerprint is not None and isinstance(entry, dict) and entry.get("stamp") == fingerprint
        return entry if is_valid else None

    def put(self, key: str, fingerprint: str | None, result: dict[str, Any]) -> None:
        """Store a result. If the file cannot be written, the next process computes it again."""
        if fingerprint is not None:
            self._write({**self._read(), key: {"stamp": fingerprint, **result}})

    def discard_if(self, predicate: Callable[[dict[str, Any]], bool]) -> None:
        """Delete the results for which the predicate is true."""
        entries = self._read()
        kept = {key: result for key, result in entries.items() if isinstance(result, dict) and not predicate(result)}
        if kept != entries:
            self._write(kept)

    def _read(self) -> dict[str, Any]:
        try:
            entries = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}

    def _write(self, entries: dict[str, Any]) -> None:
        path = self.file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, [json.dumps(entries, indent=1).encode()], is_durable=False)
        except OSError as error:
            logger.info("results of sandboxed plugins cannot be cached in %s: %s", path, error)


def _modification_time(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _affects_devices(name: str) -> bool:
    return name.endswith("VISIBLE_DEVICES") or name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
