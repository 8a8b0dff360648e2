"""Third-party devices: each is probed, and opened for the first time, in a child process, where it may crash or hang.

An exception in `open()` needs no sandbox. A signal, `os._exit` or an endless wait would end the command, even
`aethermind doctor`, which should name the package. So a child process opens the device first, as it loads the plugin
first (see `plugins.sandbox_load`). The verdict is cached until the plugin's code, the installed packages or the boot id
of the machine change. First-party devices are not sandboxed.

`python -m aethermind.runtime.isolated_devices REQUEST` is the child. REQUEST is JSON: `PluginRecord.request`, the
device, and the `action`, `probe` or `open`. The child writes lines:

    probe   an empty line once the plugin is imported, then the Probe as JSON
    open    the name of each stage that begins, then a JSON object: the device's properties, or `error`
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
from aethermind.plugins.sandbox import ChildError, ProbeCache, environment_fingerprint, result_pipe, start_child
from aethermind.plugins.sandbox_load import IN_CHILD_PROCESS, RETRY_HINT, code_fingerprint

if TYPE_CHECKING:
    from aethermind.hal.backend import Backend

__all__ = ["IsolatedDevice", "OPEN_VERDICTS", "PROBES", "device_record"]

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
        """Run the probe in a child and cache the result; after a crash or a timeout, the device counts as broken."""
        result = self._probe_in_child()
        if result.is_broken:
            result = Probe(0, f"{result.reason} Update or uninstall {self._record.distribution}.", is_broken=True)
        PROBES.put(self._key, self._probe_fingerprint(), _fields_of(result))
        return result

    def cached_probe(self) -> Probe | None:
        """Return the result of the probe that was cached since the machine's boot, or None."""
        cached = PROBES.get(self._key, self._probe_fingerprint())
        if cached is None:
            return None
        try:
            return Probe(int(cached["count"]), str(cached["reason"]), is_broken=bool(cached["is_broken"]))
        except (KeyError, TypeError, ValueError):
            return None

    def open(self) -> Backend:
        """Open the device; DeviceError if opening it ended a child, now or earlier."""
        fingerprint = code_fingerprint(self._record)
        verdict = OPEN_VERDICTS.get(self._key, fingerprint)
        reason = self._open_in_child(fingerprint)[0] if verdict is None else verdict.get("error")
        if reason:
            raise self._failure(str(reason))
        with plugin_output_to_stderr(self._record):
            return self._open()

    def examine(self) -> dict[str, Any]:
        """Open the device in a child, whatever the cached verdict, and return its `device_record`; DeviceError if it
        cannot be opened.
        """
        reason, result = self._open_in_child(code_fingerprint(self._record))
        if reason:
            raise self._failure(reason)
        if "error" in result:
            raise DeviceError(str(result["error"]))
        return result

    def _probe_in_child(self) -> Probe:
        stage = "its import"
        try:
            with start_child(_MODULE, self._request("probe")) as child:
                child.read_line(START_LIMIT_S)
                stage = "its probe"
                return Probe(**json.loads(child.read_line(PROBE_LIMIT_S)))
        except ChildError as failure:
            return Probe(0, f"{stage} {failure}.", is_broken=True)
        except OSError as error:
            reason = f"the process for its probe could not be started ({error.strerror or error})."
            return Probe(0, reason, is_broken=True)

    def _open_in_child(self, fingerprint: str | None) -> tuple[str | None, dict[str, Any]]:
        """Return why this process must not open the device, or None, and the JSON object that the child wrote."""
        stage = None
        try:
            with start_child(_MODULE, self._request("open")) as child:
                stage = child.read_line(START_LIMIT_S)
                while not (line := child.read_line(OPEN_LIMIT_S)).startswith("{"):
                    stage = line
            reason, result = None, json.loads(line)
        except (ChildError, OSError) as failure:
            if stage is None:  # the child did not get as far as the device
                logger.info("device %s is opened without a sandbox: the process for it %s", self._name, failure)
                return None, {"error": f"The process for it {failure}."}
            reason, result = f"{stage} {failure}", {}
        OPEN_VERDICTS.put(self._key, fingerprint, {"error": reason})
        return reason, result

    def _request(self, action: str) -> dict[str, str]:
        return {**self._record.request, "device": self._name, "action": action}

    def _probe_fingerprint(self) -> str | None:
        code = getattr(self._probe, "__code__", None)
        return environment_fingerprint(self._record.version, [code.co_filename] if code else [])

    def _failure(self, reason: str) -> DeviceError:
        return DeviceError(
            f"Device {self._name!r} cannot be opened: {reason}, {IN_CHILD_PROCESS}. {self._record.how_to_fix} "
            f"{RETRY_HINT}"
        )


def device_record(backend: Backend) -> dict[str, Any]:
    """Return the properties of a backend's first device, as `aethermind doctor --json` prints them."""
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
    """Import the plugin in this child process, probe or open its device, and write the result."""
    pipe = result_pipe()

    def write_line(line: str) -> None:
        os.write(pipe, line.encode() + b"\n")

    fields = json.loads(request)
    record = PluginRecord.of_request(fields)
    manager, registry = load_plugins([record]), DeviceRegistry()
    list(call_each(manager, [record], "register_devices", registry=registry))
    entry = next((entry for entry in registry if entry.name == fields["device"]), None)
    if fields["action"] == "probe":
        _write_probe(record, entry, write_line)
    else:
        _write_opened(record, entry, write_line)
    os._exit(0)  # without waiting for a driver's threads and exit handlers


def _write_probe(record: PluginRecord, entry: DeviceEntry | None, write_line: Callable[[str], None]) -> None:
    write_line("")
    if entry is None:
        probe = Probe(0, f"in a process of its own it claims no such device ({record.error}).", is_broken=True)
    else:
        probe = entry.probe()
    write_line(json.dumps(_fields_of(probe)))


def _write_opened(record: PluginRecord, entry: DeviceEntry | None, write_line: Callable[[str], None]) -> None:
    write_line("its open()")
    try:
        if entry is None:
            reason = f"In a process of its own {record.name} claims no such device ({record.error})."
            result: dict[str, Any] = {"error": reason}
        else:
            backend = entry.open()
            write_line("its devices.properties(0)")
            result = device_record(backend)
            write_line("its close()")
            backend.close()
    except BaseException as error:  # the parent process raises it when it opens the device
        result = {"error": str(error) if isinstance(error, AetherMindError) else describe_exception(error)}
    write_line(json.dumps(result, default=str))


def _fields_of(probe: Probe) -> dict[str, Any]:
    return {"count": probe.count, "reason": probe.reason, "is_broken": probe.is_broken}


if __name__ == "__main__":
    main(sys.argv[1])
