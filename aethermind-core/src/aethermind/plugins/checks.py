"""The checks that plugins give `aethermind doctor`. Those of strangers run in a child, which may crash or hang."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from aethermind.plugins.child_process import ChildError, start_child
from aethermind.plugins.discovery import PluginRecord, call_each

if TYPE_CHECKING:
    import pluggy

__all__ = ["result_of", "run_checks"]

CHECK_LIMIT_S = 10.0
"""How long a stranger's check may take."""

START_LIMIT_S = 20.0
"""How long a process may take to start and to import the plugin, which this process has done already."""


def run_checks(manager: pluggy.PluginManager, records: Sequence[PluginRecord]) -> Iterator[tuple[str, str, str]]:
    """Plugin, title and result of every check, each on its own: whatever becomes of one is a result too."""
    for record, offers in call_each(manager, records, "doctor_checks"):
        checks: list[tuple[str, Callable[[], str]]] = list(chain.from_iterable(offers))
        results = (result_of(check) for _, check in checks) if record.is_ours else _ask(record, len(checks))
        for (title, _), result in zip(checks, results, strict=True):
            yield record.name, title, result


def result_of(check: Callable[[], Any]) -> str:
    """What a check says, or the exception that it raised, in words."""
    try:
        return str(check())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit included
        return f"{type(error).__name__}: {error}"


def _ask(record: PluginRecord, count: int) -> Iterator[str]:
    """The results of a stranger's checks; after one that ends the child, another child goes on with the next.

    The child writes an empty line when it begins, and a line of JSON for each result.
    """
    num_done = 0
    while num_done < count:
        has_begun = False
        try:
            with start_child("aethermind.plugins.checks_child", {**record.request, "first": num_done}) as child:
                child.read_line(START_LIMIT_S)
                has_begun = True
                while num_done < count:
                    result = str(json.loads(child.read_line(CHECK_LIMIT_S)))
                    num_done += 1
                    yield result
        except (ChildError, OSError) as failure:
            told = 1 if has_begun else count - num_done
            num_done += told
            what = "" if has_begun else "not run: the process for it "
            yield from [f"{what}{failure}, in a process of its own"] * told
