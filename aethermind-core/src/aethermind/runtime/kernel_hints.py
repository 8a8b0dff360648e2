"""Hints about faulty kernels of third-party plugins, for `aethermind doctor` and `plugins list`.

Kernels are loaded when their device is opened, which may be long after their package was installed, and a kernel that
no plan can use is skipped silently. So these two commands load all kernels of each third-party plugin in a child:
`python -m aethermind.runtime.kernel_hints REQUEST`. REQUEST is JSON: `PluginRecord.request`. The child writes an empty
line when it begins with the kernels, then its hints as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from aethermind.errors import AetherMindError
from aethermind.plugins.discovery import PluginRecord
from aethermind.plugins.loading import call_each
from aethermind.plugins.sandbox import ChildError, result_pipe, start_child

if TYPE_CHECKING:
    from aethermind.runtime.runtime import Runtime

__all__ = ["add_kernel_hints"]

START_LIMIT_S = 40.0
"""The time limit for the child to start and to load all plugins."""

LOAD_LIMIT_S = 20.0
"""The time limit for the kernels to load."""


def add_kernel_hints(records: Sequence[PluginRecord]) -> None:
    """Add hints about kernels that are never used, or that cannot be loaded, to the records."""
    for record in records:
        if record.is_first_party or record.error is not None or "kernels" not in record.registered:
            continue
        for hint in _hints_from_child(record):
            record.hint(hint)


def main(request: str) -> None:
    """Load the kernels of one plugin in this child process, and write the hints about them."""
    from aethermind.runtime.runtime import Runtime

    pipe = result_pipe()
    fields = json.loads(request)
    runtime = Runtime.boot()
    os.write(pipe, b"\n")
    os.write(pipe, json.dumps([*_hints(runtime, fields["name"])]).encode() + b"\n")
    os._exit(0)  # without waiting for a driver's threads and exit handlers


def _hints_from_child(record: PluginRecord) -> list[str]:
    """Return the hints of a child process, or one about its failure."""
    is_booted = False
    try:
        with start_child("aethermind.runtime.kernel_hints", record.request) as child:
            child.read_line(START_LIMIT_S)
            is_booted = True
            return list(json.loads(child.read_line(LOAD_LIMIT_S)))
    except (ChildError, OSError) as failure:
        what = "loading its kernels" if is_booted else "the process to load its kernels in"
        return [f"{what} {failure}."]


def _hints(runtime: Runtime, plugin: str) -> Iterator[str]:
    from aethermind.dispatch.registry import KernelRegistry, unusable_kernels
    from aethermind.graph.tensor_parallel.collectives import with_collectives

    registry = KernelRegistry()
    records = [record for record in runtime.plugins if record.name == plugin]
    list(call_each(runtime.manager, records, "register_kernels", registry=registry))
    devices = {entry.name: entry for entry in runtime.devices}
    for device in registry.device_types():
        entry = devices.get(device)
        if entry is None:
            near = get_close_matches(device, devices, 1)
            advice = f"did you mean {near[0]!r}?" if near else "they are of use only beside a package that does."
            yield f"it offers kernels for {device!r}, a device that no installed package provides; {advice}"
        elif (
            entry.cached_probe() or entry.probe()
        ).is_available:  # else the libraries that the kernels need may be missing
            try:
                kernels = registry.kernels(device)
            except AetherMindError as error:
                yield str(error)
                continue
            for kernel, problem, _ in unusable_kernels(kernels, with_collectives(runtime.operators)):
                yield f"its kernel {kernel.name!r} for {device} is never used: {problem}"


if __name__ == "__main__":
    main(sys.argv[1])
