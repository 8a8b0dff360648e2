"""Loads a third-party plugin in a child process first; one that crashes or hangs there is not loaded in this process.

An exception needs no sandbox: loading a plugin in this process records it. A signal, `os._exit` or an endless wait
would end this process. So each version of a third-party package is loaded in a child process first, which calls all its
hooks, too. The verdict is cached until the plugin's code or the installed packages change, so that later starts are as
fast as without a sandbox.
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
from aethermind.plugins.compatibility import negotiate
from aethermind.plugins.discovery import PluginRecord, discover, plugin_names
from aethermind.plugins.loading import load_plugins
from aethermind.plugins.sandbox import ChildError, ProbeCache, environment_fingerprint, start_child

if TYPE_CHECKING:
    import pluggy

    from aethermind.plugins.sandbox import ChildProcess

__all__ = [
    "IN_CHILD_PROCESS",
    "LOAD_VERDICTS",
    "RETRY_HINT",
    "code_fingerprint",
    "forget_failures",
    "load_installed",
    "sandbox_load",
]

logger = get_logger(__name__)

LOAD_LIMIT_S = 10.0
"""The time limit of a plugin's import, and of each of its hooks."""

START_LIMIT_S = 20.0
"""The time limit for the child to start, before it imports the plugin."""

LOAD_VERDICTS = ProbeCache("trials.json")
"""Results of sandboxed loads: `error` is the reason why a plugin must not be loaded in this process, or None."""

IN_CHILD_PROCESS = "when it was tried in a child process"
RETRY_HINT = "`aethermind doctor` tries it again, and so does the next start after it has changed."
"""The endings of messages about a failure in a child process."""


def load_installed() -> tuple[list[PluginRecord], pluggy.PluginManager]:
    """Find and load every plugin; a plugin's record holds what went wrong with it."""
    records = discover()
    _warn_of_unknown_names(records)
    sandbox_load(records)
    return records, load_plugins(records)


def _warn_of_unknown_names(records: Sequence[PluginRecord]) -> None:
    """Warn about names in AETHERMIND_PLUGINS that no package provides, such as misspelt ones."""
    unknown = (env.plugin_allow_list() or frozenset()) - {record.name for record in records}
    if unknown:
        installed = ", ".join(sorted(plugin_names())) or "none"
        names = ", ".join(map(repr, sorted(unknown)))
        logger.warning("AETHERMIND_PLUGINS names %s, which no package provides. Installed: %s.", names, installed)


def sandbox_load(records: Sequence[PluginRecord]) -> None:
    """Load third-party plugins without a cached verdict in children; fail the records of those that crash or hang."""
    without_verdict = []
    for record in records:
        is_loaded = _module_of(record) in sys.modules
        if record.is_first_party or is_loaded or negotiate(record.api_versions, record.distribution).error:
            continue
        verdict = LOAD_VERDICTS.get(_cache_key(record), code_fingerprint(record))
        if verdict is None:
            without_verdict.append(record)
        elif verdict.get("error"):
            _fail(record, str(verdict["error"]))
    if without_verdict:
        _load_in_children(without_verdict)


def forget_failures() -> None:
    """Delete negative verdicts, so that the next start loads those plugins in a child again."""
    LOAD_VERDICTS.discard_if(lambda verdict: bool(verdict.get("error")))


def code_fingerprint(record: PluginRecord) -> str | None:
    """Return a fingerprint that changes with the plugin's code and with the installed packages (its libraries)."""
    installed = [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    return environment_fingerprint(record.version, [*_code_files(_module_of(record)), *installed])


def _load_in_children(records: Sequence[PluginRecord]) -> None:
    """Start one child for each plugin, all at once, since each child has to start Python."""
    with ExitStack() as stack:
        children = []
        for record in records:
            try:  # AETHERMIND_PLUGINS is empty: no plugins in processes that the import starts
                starting = start_child("aethermind.runtime.sandbox_child", record.request, {"AETHERMIND_PLUGINS": ""})
                children.append((record, stack.enter_context(starting)))
            except OSError as error:
                logger.info("cannot start a process to try plugin %s: %s", record.title, error)
        for record, child in children:
            try:
                child.read_line(START_LIMIT_S)
            except ChildError as failure:  # the child did not get as far as the plugin
                logger.info("plugin %s is loaded without a sandbox: its child process %s", record.title, failure)
                continue
            reason = _read_verdict(child)
            LOAD_VERDICTS.put(_cache_key(record), code_fingerprint(record), {"error": reason})
            if reason:
                _fail(record, reason)


def _read_verdict(child: ChildProcess) -> str | None:
    """Return why the child did not finish, or None if it did.

    The child writes a line before each hook (the hook's name), a line of `!` and the exception if it is interrupted,
    and an empty line at the end.
    """
    stage = "its import"
    try:
        while line := child.read_line(LOAD_LIMIT_S):
            if line.startswith("!"):
                return f"{stage} {line[1:]}"
            stage = f"its hook {line}"
    except ChildError as failure:
        return f"{stage} {failure}"
    return None


def _fail(record: PluginRecord, error: str) -> None:
    record.fail(f"{error}, {IN_CHILD_PROCESS}.", f"{record.how_to_fix} {RETRY_HINT}")


def _cache_key(record: PluginRecord) -> str:
    return f"{record.distribution}:{record.name}"


def _module_of(record: PluginRecord) -> str:
    return record.entry_point.value.partition(":")[0].strip()


def _code_files(module: str) -> Iterator[str]:
    """Yield the source and library files around a module, found without importing it."""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top)
    except Exception as error:  # raised by an import hook of another package; importing the plugin raises it again
        logger.info("the files of %s are not known: %s", module, error)
        return
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        yield spec.origin or ""
    for location in spec.submodule_search_locations or ():
        for folder in {Path(location), Path(location, *inner[:-1])}:
            yield from sorted(str(path) for path in folder.glob("*.*") if path.suffix in (".py", ".so", ".pyd"))
