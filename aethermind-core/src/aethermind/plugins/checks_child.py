"""The process in which a stranger's checks run: `python -m aethermind.plugins.checks_child REQUEST`.

REQUEST is JSON: `PluginRecord.request` and the number of the first check. `plugins.checks` says what the answers mean.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import chain

from aethermind.plugins.checks import result_of
from aethermind.plugins.child_process import answer_pipe
from aethermind.plugins.discovery import PluginRecord, call_each, load

__all__ = ["main"]


def main(request: str) -> None:
    """Import the plugin, say so by an empty line, and answer a line for each of its checks."""
    answers = answer_pipe()
    asked = json.loads(request)
    record = PluginRecord.of_request(asked)
    offers = [offered for _, offered in call_each(load([record]), [record], "doctor_checks")]
    os.write(answers, b"\n")
    for _, check in list(chain.from_iterable(chain.from_iterable(offers)))[asked["first"] :]:
        os.write(answers, json.dumps(result_of(check)).encode() + b"\n")
    os._exit(0)  # a driver's threads and exit handlers are not waited for


if __name__ == "__main__":
    main(sys.argv[1])
