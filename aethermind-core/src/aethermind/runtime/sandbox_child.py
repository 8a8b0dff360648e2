"""The child process that loads a third-party plugin first: `python -m aethermind.runtime.sandbox_child REQUEST`.

REQUEST is JSON: `PluginRecord.request`. `plugins.sandbox_load` starts this process and documents the lines that it
writes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from aethermind.plugins.discovery import PluginRecord
from aethermind.plugins.loading import call_each, load_plugins
from aethermind.plugins.sandbox import result_pipe
from aethermind.runtime.runtime import Runtime

__all__ = ["main"]


def main(request: str) -> None:
    """Load the plugin and call all hooks that the runtime and the command line call."""
    pipe = result_pipe()

    def write_line(line: str) -> None:
        os.write(pipe, line.encode() + b"\n")

    def before_hook(name: str, implementations: Sequence[Any], _: Any) -> None:
        if implementations:
            write_line(name)

    record = PluginRecord.of_request(json.loads(request))
    write_line("")
    try:
        manager = load_plugins([record])
        manager.add_hookcall_monitoring(before_hook, lambda *_: None)
        runtime = Runtime.of([record], manager)
        if hasattr(manager.get_plugin(record.name), "register_operators"):
            _ = runtime.operators
        list(call_each(manager, [record], "register_commands", app=typer.Typer()))
        list(call_each(manager, [record], "doctor_checks"))
    except KeyboardInterrupt:  # only the plugin itself can interrupt this process
        write_line("!raised KeyboardInterrupt")
    write_line("")
    os._exit(0)  # without waiting for a driver's threads and exit handlers


if __name__ == "__main__":
    main(sys.argv[1])
