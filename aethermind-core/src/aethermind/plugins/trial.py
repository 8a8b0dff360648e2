"""The first load of a stranger's plugin, in a process of its own: one that crashes or hangs is left out from then on.

What Python can catch needs no trial: an exception in a plugin is written into its record when it is loaded here. A
signal, `os._exit` or an endless wait would take this process with it. So each version of a package that is not released
with the core is loaded in a child first, all its hooks included, and the verdict is kept until its code or what is
installed beside it changes: from then on a start costs what it did before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from aethermind import env
from aethermind.log import get_logger
from aethermind.plugins.contracts import negotiate
from aethermind.plugins.discovery import PluginRecord, discover, load, plugin_names
from aethermind.plugins.kept_answers import KeptAnswers, stamp_of

if TYPE_CHECKING:
    import pluggy

    from aethermind.plugins.child_process import ChildProcess

__all__ = ["TRIED_AGAIN", "VERDICTS", "WHEN_TRIED", "code_stamp", "forget_failures", "load_installed", "try_strangers"]

logger = get_logger(__name__)

TRIAL_LIMIT_S = 10.0
"""How long a plugin's import, or one of its hooks, may take."""

START_LIMIT_S = 20.0
"""How long the child may take until it begins with the plugin."""

VERDICTS = KeptAnswers("trials.json")

WHEN_TRIED = "when it was tried in a process of its own"
TRIED_AGAIN = "`aethermind doctor` tries it again, as does every start once it has changed."
"""How messages about a verdict end."""


def load_installed() -> tuple[list[PluginRecord], pluggy.PluginManager]:
    """Find and load every plugin; whatever goes wrong with one is written into its record."""
    records = discover()
    _tell_unknown(records)
    try_strangers(records)
    return records, load(records)


def _tell_unknown(records: Sequence[PluginRecord]) -> None:
    """A name that is misspelt leaves out what it was to let load."""
    unknown = (env.plugin_allow_list() or frozenset()) - {record.name for record in records}
    if unknown:
        installed = ", ".join(sorted(plugin_names())) or "none"
        names = ", ".join(map(repr, sorted(unknown)))
        logger.warning("AETHERMIND_PLUGINS names %s, which no package provides. Installed: %s.", names, installed)


def try_strangers(records: Sequence[PluginRecord]) -> None:
    """Let those plugins fail that crash or hang when they are loaded; the records of all others are left alone."""
    untried = []
    for record in records:
        if record.is_ours or _module(record) in sys.modules or negotiate(record.contracts, record.distribution).error:
            continue
        verdict = VERDICTS.recall(_key(record), code_stamp(record))
        if verdict is None:
            untried.append(record)
        elif verdict.get("error"):
            _fail(record, str(verdict["error"]))
    if untried:
        _try_all(untried)


def forget_failures() -> None:
    """Let whatever failed its trial be tried again."""
    VERDICTS.forget(lambda verdict: bool(verdict.get("error")))


def _try_all(records: Sequence[PluginRecord]) -> None:
    """All at once, since each takes the time of starting Python."""
    from aethermind.plugins.child_process import ChildError, start_child

    with ExitStack() as stack:
        children = []
        for record in records:
            try:  # plugins that begin processes of their own at import find no plugins there
                starting = start_child("aethermind.runtime.trial_child", record.request, {"AETHERMIND_PLUGINS": ""})
                children.append((record, stack.enter_context(starting)))
            except OSError as error:
                logger.info("no process to try plugin %s in: %s", record.title, error)
        for record, child in children:
            try:
                child.read_line(START_LIMIT_S)
            except ChildError as failure:  # which says nothing about the plugin
                logger.info("plugin %s is loaded untried: the process for it %s", record.title, failure)
                continue
            reason = _watch(child)
            VERDICTS.keep(_key(record), code_stamp(record), {"error": reason})
            if reason:
                _fail(record, reason)


def _watch(child: ChildProcess) -> str | None:
    """The child writes the name of each hook that it begins, `!` and what one raised, and an empty line at last."""
    from aethermind.plugins.child_process import ChildError

    what = "its import"
    try:
        while line := child.read_line(TRIAL_LIMIT_S):
            if line.startswith("!"):
                return f"{what} {line[1:]}"
            what = f"its hook {line}"
    except ChildError as failure:
        return f"{what} {failure}"
    return None


def _fail(record: PluginRecord, error: str) -> None:
    record.fail(f"{error}, {WHEN_TRIED}.", f"{record.repair} {TRIED_AGAIN}")


def _key(record: PluginRecord) -> str:
    return f"{record.distribution}:{record.name}"


def _module(record: PluginRecord) -> str:
    return record.entry_point.value.partition(":")[0].strip()


def code_stamp(record: PluginRecord) -> str | None:
    """Changes with the plugin's code and with whatever is installed or removed beside it, such as its libraries."""
    installed = [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    return stamp_of(record.version, [*_code_files(_module(record)), *installed])


def _code_files(module: str) -> Iterator[str]:
    """The files around a module, found without importing anything."""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top)
    except Exception as error:  # of finders that others installed; importing the plugin will say it again
        logger.info("the files of %s are not known: %s", module, error)
        return
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        yield spec.origin or ""
    for location in spec.submodule_search_locations or ():
        for folder in {Path(location), Path(location, *inner[:-1])}:
            yield from sorted(str(path) for path in folder.glob("*.*") if path.suffix in (".py", ".so", ".pyd"))
