"""The process in which a plugin's kernels are looked at: `python -m aethermind.runtime.kernel_hints_child REQUEST`.

REQUEST is JSON: `PluginRecord.request`. `runtime.kernel_hints` says what the answers mean.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from difflib import get_close_matches

from aethermind.dispatch.registry import KernelRegistry
from aethermind.dispatch.useless_kernels import useless_kernels
from aethermind.errors import AetherMindError
from aethermind.graph.tensor_parallel.operators import with_collectives
from aethermind.plugins.child_process import answer_pipe
from aethermind.plugins.discovery import call_each
from aethermind.runtime.runtime import Runtime

__all__ = ["main"]


def main(request: str) -> None:
    """Load all plugins, say so by an empty line, load the kernels of the one that is asked for, and answer."""
    answers = answer_pipe()
    asked = json.loads(request)
    runtime = Runtime.boot()
    os.write(answers, b"\n")
    os.write(answers, json.dumps([*_hints(runtime, asked["name"])]).encode() + b"\n")
    os._exit(0)  # a driver's threads and exit handlers are not waited for


def _hints(runtime: Runtime, plugin: str) -> Iterator[str]:
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
        elif (entry.recall() or entry.probe()).is_available:  # elsewhere their libraries may rightly be missing
            try:
                kernels = registry.kernels(device)
            except AetherMindError as error:
                yield str(error)
                continue
            for kernel, problem, _ in useless_kernels(kernels, with_collectives(runtime.operators)):
                yield f"its kernel {kernel.name!r} for {device} is never used: {problem}"


if __name__ == "__main__":
    main(sys.argv[1])
