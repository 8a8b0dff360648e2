"""Third-party devices: each is probed, and opened for the first time, in a child process, where it may crash or hang.

An exception in `open()` needs no sandbox. A signal, `os._exit` or an endless wait would end the command, and
`aethermind doctor` could not name the package either. So a child opens the device of each version of a package first,
as a child loads its plugin (see `plugins.sandbox_load`). The verdict is cached until the plugin's code, what is
installed beside it, or the boot of the machine changes. First-party devices are not sandboxed.

`python -m aethermind.runtime.isolated_devices REQUEST` is the child. REQUEST is JSON: `PluginRecord.request`, the
device, and the `action`, `probe` or `open`. The child answers in lines:

    probe   an empty line once the plugin is imported, then the Probe as JSON
    open    the name of each stage that begins, then a JSON object: the device's facts, or the error of its backend
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aethermind.errors import AetherMindError, DeviceError, describe_exception
from aethermind.hal.device import Probe
from aethermind.hal.registry import DeviceEntry, DeviceRegistry
from aethermind.log import get_logger
from aethermind.plugins.discovery import PluginRecord
from aethermind.plugins.loading import call_each, load_plugins, plugin_output_to_stderr
from aethermind.plugins.sandbox import ChildError, ProbeCache, answer_pipe, stamp_of, start_child
from aethermind.plugins.sandbox_load import IN_CHILD_PROCESS, RETRY_HINT, code_fingerprint

if TYPE_CHECKING:
    from aethermind.hal.backend import Backend

__all__ = ["IsolatedDevice", "OPEN_VERDICTS", "PROBES", "facts_of"]

logger = get_logger(__name__)

PROBE_LIMIT_S = 2.0
"""The time limit of a probe, from the moment that its plugin is imported, so that a slow machine has time to import."""

OPEN_LIMIT_S = 30.0
"""The time limit to open a device, to read its properties, or to close it: drivers load firmware meanwhile."""

START_LIMIT_S = 20.0
"""The time limit for a child to start and to import the plugin, which this process has already done."""

PROBES = ProbeCache("probes.json")
OPEN_VERDICTS = ProbeCache("opens.json")

_MODULE = "aethermind.runtime.isolated_devices"


class IsolatedDevice:
    """One device of one third-party plugin: its `probe` and the first call of its `open` run in a child."""

    def __init__(
        self, record: PluginRecord, name: str, probe: Callable[[], Probe], open: Callable[[], Backend]
    ) -> None:
        self._record = record
        self._name = name
        self._probe = probe
        self._open = open
        self._key = f"{record.distribution}:{record.name}:{name}"

    def probe(self) -> Probe:
        """Run the probe in a child and cache its answer; a crash or a timeout is the answer of a broken device."""
        answer = self._probe_in_child()
        if answer.is_broken:
            answer = Probe(0, f"{answer.reason} Update or uninstall {self._record.distribution}.", is_broken=True)
        PROBES.put(self._key, self._probe_stamp(), _fields_of(answer))
        return answer

    def cached_probe(self) -> Probe | None:
        """The probe's cached answer of this boot of the machine, or None."""
        cached = PROBES.get(self._key, self._probe_stamp())
        if cached is None:
            return None
        try:
            return Probe(int(cached["count"]), str(cached["reason"]), is_broken=bool(cached["is_broken"]))
        except (KeyError, TypeError, ValueError):
            return None

    def open(self) -> Backend:
        """Open the device; DeviceError if opening it ended a child, now or earlier."""
        stamp = code_fingerprint(self._record)
        verdict = OPEN_VERDICTS.get(self._key, stamp)
        reason = self._open_in_child(stamp)[0] if verdict is None else verdict.get("error")
        if reason:
            raise self._failure(str(reason))
        with plugin_output_to_stderr(self._record):
            return self._open()

    def examine(self) -> dict[str, Any]:
        """Open the device in a child, whatever the cached verdict, and return its `facts_of`; DeviceError if it cannot
        be opened.
        """
        reason, answer = self._open_in_child(code_fingerprint(self._record))
        if reason:
            raise self._failure(reason)
        if "error" in answer:
            raise DeviceError(str(answer["error"]))
        return answer

    def _probe_in_child(self) -> Probe:
        what = "its import"
        try:
            with start_child(_MODULE, self._request("probe")) as child:
                child.read_line(START_LIMIT_S)
                what = "its probe"
                return Probe(**json.loads(child.read_line(PROBE_LIMIT_S)))
        except ChildError as failure:
            return Probe(0, f"{what} {failure}.", is_broken=True)
        except OSError as error:
            reason = f"the process for its probe could not be started ({error.strerror or error})."
            return Probe(0, reason, is_broken=True)

    def _open_in_child(self, stamp: str | None) -> tuple[str | None, dict[str, Any]]:
        """Return why this process must not open the device, or None, and the child's answer."""
        stage = None
        try:
            with start_child(_MODULE, self._request("open")) as child:
                stage = child.read_line(START_LIMIT_S)
                while not (line := child.read_line(OPEN_LIMIT_S)).startswith("{"):
                    stage = line
            reason, answer = None, json.loads(line)
        except (ChildError, OSError) as failure:
            if stage is None:  # which is not the device's fault
                logger.info("device %s is opened untried: the process for it %s", self._name, failure)
                return None, {"error": f"The process for it {failure}."}
            reason, answer = f"{stage} {failure}", {}
        OPEN_VERDICTS.put(self._key, stamp, {"error": reason})
        return reason, answer

    def _request(self, action: str) -> dict[str, str]:
        return {**self._record.request, "device": self._name, "action": action}

    def _probe_stamp(self) -> str | None:
        code = getattr(self._probe, "__code__", None)
        return stamp_of(self._record.version, [code.co_filename] if code else [])

    def _failure(self, reason: str) -> DeviceError:
        return DeviceError(
            f"Device {self._name!r} cannot be opened: {reason}, {IN_CHILD_PROCESS}. {self._record.how_to_fix} "
            f"{RETRY_HINT}"
        )


def facts_of(backend: Backend) -> dict[str, Any]:
    """The properties of a backend's first device, as `aethermind doctor --json` prints them."""
    properties = backend.devices.properties(0)
    return {
        "title": properties.name,
        "isa": list(properties.isa),
        "details": dict(properties.details),
        "total_memory_bytes": properties.total_memory_bytes,
        "num_cores": properties.num_cores,
        "dtypes": [str(dtype) for dtype in backend.capabilities.dtypes],
    }


def main(request: str) -> None:
    """Import the plugin in this child process, probe or open its device, and answer."""
    answers = answer_pipe()

    def write_line(line: str) -> None:
        os.write(answers, line.encode() + b"\n")

    asked = json.loads(request)
    record = PluginRecord.of_request(asked)
    manager, registry = load_plugins([record]), DeviceRegistry()
    list(call_each(manager, [record], "register_devices", registry=registry))
    entry = next((entry for entry in registry if entry.name == asked["device"]), None)
    if asked["action"] == "probe":
        _answer_probe(record, entry, write_line)
    else:
        _answer_open(record, entry, write_line)
    os._exit(0)  # without waiting for a driver's threads and exit handlers


def _answer_probe(record: PluginRecord, entry: DeviceEntry | None, write_line: Callable[[str], None]) -> None:
    write_line("")
    if entry is None:
        probe = Probe(0, f"in a process of its own it claims no such device ({record.error}).", is_broken=True)
    else:
        probe = entry.probe()
    write_line(json.dumps(_fields_of(probe)))


def _answer_open(record: PluginRecord, entry: DeviceEntry | None, write_line: Callable[[str], None]) -> None:
    write_line("its open()")
    try:
        if entry is None:
            reason = f"In a process of its own {record.name} claims no such device ({record.error})."
            answer: dict[str, Any] = {"error": reason}
        else:
            backend = entry.open()
            write_line("its devices.properties(0)")
            answer = facts_of(backend)
            write_line("its close()")
            backend.close()
    except BaseException as error:  # the parent gets it again when it opens the device itself
        answer = {"error": str(error) if isinstance(error, AetherMindError) else describe_exception(error)}
    write_line(json.dumps(answer, default=str))


def _fields_of(probe: Probe) -> dict[str, Any]:
    return {"count": probe.count, "reason": probe.reason, "is_broken": probe.is_broken}


if __name__ == "__main__":
    main(sys.argv[1])
