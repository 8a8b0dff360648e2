"""Asking a stranger's probe in a process of its own, where it may crash or hang without taking this one with it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aethermind.hal import probe_memory
from aethermind.hal.device import Probe

if TYPE_CHECKING:
    from aethermind.plugins.discovery import PluginRecord

__all__ = ["IsolatedProbe", "PROBE_LIMIT_S", "START_LIMIT_S"]

PROBE_LIMIT_S = 2.0
"""How long a probe may take, from the moment that its plugin is imported."""

START_LIMIT_S = 20.0
"""How long a process may take to start and to import the plugin, which this process has done already."""


class IsolatedProbe:
    """The probe of one device of one plugin: `ask` runs it in a child, `recall` says what it answered last.

    The limit counts from when the child has imported the plugin, so a slow machine does not make a probe slow.
    """

    def __init__(self, record: PluginRecord, device: str, probe: Callable[[], Probe]) -> None:
        self._record = record
        self._device = device
        self._probe = probe
        self._key = f"{record.distribution}:{record.name}:{device}"

    def ask(self) -> Probe:
        """Run the probe in a child and keep its answer; whatever becomes of the child is an answer too."""
        point = self._record.entry_point
        request = {"name": point.name, "value": point.value, "group": point.group, "device": self._device}
        answer = _ask_child(request)
        if answer.is_broken:
            answer = Probe(0, f"{answer.reason} Update or uninstall {self._record.distribution}.", is_broken=True)
        probe_memory.keep(self._key, self._stamp(), answer)
        return answer

    def recall(self) -> Probe | None:
        """What the probe answered before on this boot of this machine, or None."""
        return probe_memory.recall(self._key, self._stamp())

    def _stamp(self) -> str | None:
        return probe_memory.stamp_of(self._record.version, self._probe)


def _ask_child(request: dict[str, str]) -> Probe:
    path = [entry or os.getcwd() for entry in sys.path]
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "aethermind.hal.probe_child", json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,
        )
    except OSError as error:
        return _broken(f"the process for its probe could not be started ({error.strerror or error})")
    try:
        return _converse(child)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # with whatever the plugin started
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def _converse(child: subprocess.Popen[bytes]) -> Probe:
    """The child writes an empty line when it begins to ask, and the answer as a line of JSON."""
    for what, limit_s in (("its import", START_LIMIT_S), ("its probe", PROBE_LIMIT_S)):
        deadline = time.monotonic() + limit_s
        try:
            line = _read_line(child, deadline)
            exit_code = None if line.endswith(b"\n") else child.wait(max(deadline - time.monotonic(), 0.1))
        except (TimeoutError, subprocess.TimeoutExpired):
            return _broken(f"{what} did not answer within {limit_s:g} s")
        if exit_code is not None:
            return _broken(f"{what} {_end_in_words(exit_code)}")
    return Probe(**json.loads(line))


def _read_line(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    """A line, or what came before the child closed its end; TimeoutError at the deadline."""
    assert child.stdout is not None
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(deadline - time.monotonic(), 0)):
                raise TimeoutError
            byte = os.read(child.stdout.fileno(), 1)
            if not byte:
                break
            line += byte
    return line


def _end_in_words(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended its process with exit code {exit_code}"
    try:
        name = f" ({signal.Signals(-exit_code).name})"
    except ValueError:
        name = ""
    return f"crashed with signal {-exit_code}{name}"


def _broken(reason: Any) -> Probe:
    return Probe(0, f"{reason}.", is_broken=True)
