"""The process in which a stranger's plugin is loaded first: `python -m aethermind.runtime.trial_child REQUEST`.

REQUEST is JSON: `PluginRecord.request`. `plugins.trial` says what the answers mean.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from aethermind.plugins.child_process import answer_pipe
from aethermind.plugins.discovery import PluginRecord, call_each, load
from aethermind.runtime.runtime import Runtime

__all__ = ["main"]


def main(request: str) -> None:
    """Load the plugin and call its hooks as this package and the command line do."""
    answers = answer_pipe()

    def say(line: str) -> None:
        os.write(answers, line.encode() + b"\n")

    def before_hook(name: str, implementations: Sequence[Any], _: Any) -> None:
        if implementations:
            say(name)

    record = PluginRecord.of_request(json.loads(request))
    say("")
    try:
        manager = load([record])
        manager.add_hookcall_monitoring(before_hook, lambda *_: None)
        runtime = Runtime.of([record], manager)
        if hasattr(manager.get_plugin(record.name), "register_operators"):
            _ = runtime.operators
        list(call_each(manager, [record], "register_commands", app=typer.Typer()))
        list(call_each(manager, [record], "doctor_checks"))
    except KeyboardInterrupt:  # nobody interrupts this process but itself
        say("!raised KeyboardInterrupt")
    say("")
    os._exit(0)  # a driver's threads and exit handlers are not waited for


if __name__ == "__main__":
    main(sys.argv[1])
