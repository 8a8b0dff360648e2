"""The process in which a third party's device is opened first: `python -m aethermind.hal.open_child REQUEST`.

REQUEST is JSON: `PluginRecord.request` and the device. The answers are a line for each stage that begins, and at last
an object: the facts of the device, or the error that its backend raised.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from aethermind.errors import AetherMindError, in_words
from aethermind.hal.isolated_open import facts_of
from aethermind.hal.probe_child import claimed_device
from aethermind.plugins.child_process import answer_pipe

__all__ = ["main"]


def main(request: str) -> None:
    """Import the plugin, then open its device, ask for its properties and close it."""
    answers = answer_pipe()

    def say(line: str) -> None:
        os.write(answers, line.encode() + b"\n")

    record, entry = claimed_device(request)
    say("its open()")
    try:
        if entry is None:
            reason = f"In a process of its own {record.name} claims no such device ({record.error})."
            answer: dict[str, Any] = {"error": reason}
        else:
            backend = entry.open()
            say("its devices.properties(0)")
            answer = facts_of(backend)
            say("its close()")
            backend.close()
    except BaseException as error:  # the parent meets it again where it opens the device itself
        answer = {"error": str(error) if isinstance(error, AetherMindError) else in_words(error)}
    say(json.dumps(answer, default=str))
    os._exit(0)  # a driver's threads and exit handlers are not waited for


if __name__ == "__main__":
    main(sys.argv[1])
