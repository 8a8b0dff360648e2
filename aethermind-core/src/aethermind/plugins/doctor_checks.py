"""The checks that plugins add to `aethermind doctor`; those of third parties run in a child process.

`python -m aethermind.plugins.doctor_checks REQUEST` is that child process. REQUEST is JSON: `PluginRecord.request` and
the number of the first check to run. The child writes an empty line once the plugin is imported, then a line of JSON
for each result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from aethermind.plugins.discovery import PluginRecord
from aethermind.plugins.loading import call_each, load_plugins
from aethermind.plugins.sandbox import ChildError, result_pipe, start_child

if TYPE_CHECKING:
    import pluggy

__all__ = ["run_checks"]

CHECK_LIMIT_S = 10.0
"""The time limit of one third-party check."""

START_LIMIT_S = 20.0
"""The time limit for a child to start and to import the plugin, which this process has already done."""


def run_checks(manager: pluggy.PluginManager, records: Sequence[PluginRecord]) -> Iterator[tuple[str, str, str]]:
    """Yield plugin, title and result of every check; an exception, a crash or a timeout is a result, too."""
    for record, lists in call_each(manager, records, "doctor_checks"):
        checks: list[tuple[str, Callable[[], str]]] = list(chain.from_iterable(lists))
        if record.is_first_party:
            results: Iterator[str] = (_result_of(check) for _, check in checks)
        else:
            results = _run_in_children(record, len(checks))
        for (title, _), result in zip(checks, results, strict=True):
            yield record.name, title, result


def main(request: str) -> None:
    """Run a plugin's checks in this child process and write the results."""
    pipe = result_pipe()
    fields = json.loads(request)
    record = PluginRecord.of_request(fields)
    lists = [lists for _, lists in call_each(load_plugins([record]), [record], "doctor_checks")]
    os.write(pipe, b"\n")
    for _, check in list(chain.from_iterable(chain.from_iterable(lists)))[fields["first"] :]:
        os.write(pipe, json.dumps(_result_of(check)).encode() + b"\n")
    os._exit(0)  # without waiting for a driver's threads and exit handlers


def _run_in_children(record: PluginRecord, count: int) -> Iterator[str]:
    """Run a third party's checks in a child process; if a check ends it, another child runs the next one."""
    num_done = 0
    while num_done < count:
        is_imported = False
        try:
            with start_child("aethermind.plugins.doctor_checks", {**record.request, "first": num_done}) as child:
                child.read_line(START_LIMIT_S)
                is_imported = True
                while num_done < count:
                    result = str(json.loads(child.read_line(CHECK_LIMIT_S)))
                    num_done += 1
                    yield result
        except (ChildError, OSError) as failure:
            num_failed = 1 if is_imported else count - num_done
            num_done += num_failed
            what = "" if is_imported else "not run: the process for it "
            yield from [f"{what}{failure}, in a process of its own"] * num_failed


def _result_of(check: Callable[[], Any]) -> str:
    """Return the text that a check returns, or the exception that it raises."""
    try:
        return str(check())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit included
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(sys.argv[1])
