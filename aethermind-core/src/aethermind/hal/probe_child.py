"""The process in which a stranger's probe runs: `python -m aethermind.hal.probe_child REQUEST`.

REQUEST is JSON: `PluginRecord.request` and the device. The answer goes to standard output as it was
at the start; what the plugin prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys

from aethermind.hal.device import Probe
from aethermind.hal.registry import DeviceEntry, DeviceRegistry
from aethermind.plugins.child_process import answer_pipe
from aethermind.plugins.discovery import PluginRecord, call_each, load

__all__ = ["claimed_device", "main"]


def claimed_device(request: str) -> tuple[PluginRecord, DeviceEntry | None]:
    """The plugin that a request names, loaded, and the device that it claims by the request's name, if it does."""
    asked = json.loads(request)
    record = PluginRecord.of_request(asked)
    manager, registry = load([record]), DeviceRegistry()
    list(call_each(manager, [record], "register_devices", registry=registry))
    return record, next((entry for entry in registry if entry.name == asked["device"]), None)


def main(request: str) -> None:
    """Import the plugin, say so by an empty line, ask its probe, and answer in a line of JSON."""
    answers = answer_pipe()
    record, entry = claimed_device(request)
    os.write(answers, b"\n")
    if entry is None:
        probe = Probe(0, f"in a process of its own it claims no such device ({record.error}).", is_broken=True)
    else:
        probe = entry.probe()
    answer = {"count": probe.count, "reason": probe.reason, "is_broken": probe.is_broken}
    os.write(answers, json.dumps(answer).encode() + b"\n")
    os._exit(0)  # a driver's threads and exit handlers are not waited for


if __name__ == "__main__":
    main(sys.argv[1])
