"""Loads plugins and calls their hooks. The failure of a plugin is stored in its record, not raised."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aethermind.errors import AetherMindError, describe_exception
from aethermind.log import get_logger
from aethermind.plugins import hookspecs
from aethermind.plugins.compatibility import collecting_deprecations, deprecation_text, negotiate
from aethermind.plugins.hookspecs import HookSpecs
from aethermind.plugins.stdout_guard import stdout_to_stderr

if TYPE_CHECKING:
    import pluggy

    from aethermind.plugins.discovery import PluginRecord

__all__ = ["call_each", "load_plugins", "plugin_output_to_stderr"]

logger = get_logger(__name__)

SLOW_S = 2.0
"""A third party's import or hook that takes more seconds is logged as a warning, because it delays every start."""


def load_plugins(records: Sequence[PluginRecord]) -> pluggy.PluginManager:
    """Import each plugin that has not failed yet and check its hooks; return their manager.

    Failures are stored in the records.
    """
    import pluggy

    manager = pluggy.PluginManager("aethermind")
    manager.add_hookspecs(HookSpecs)
    for record in [record for record in records if record.error is None]:
        started = time.perf_counter()
        with collecting_deprecations(record.deprecated), plugin_output_to_stderr(record):
            _load_one(manager, record)
        seconds = time.perf_counter() - started
        record.load_ms = seconds * 1e3
        _warn_if_slow(record, "import", seconds)
    return manager


def plugin_output_to_stderr(record: PluginRecord) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that redirects standard output to standard error while third-party plugin code runs."""
    return contextlib.nullcontext() if record.is_first_party else stdout_to_stderr()


def _warn_if_slow(record: PluginRecord, what: str, seconds: float) -> None:
    """Warn about a third party's slow import or hook, since nothing else shows what delays a start."""
    if seconds > SLOW_S and not record.is_first_party and record.error is None:
        logger.warning(
            "Plugin %s takes %.1f s for its %s, which delays every start. Its author should import heavy modules "
            "where they are first used.",
            record.title,
            seconds,
            what,
        )


def _load_one(manager: pluggy.PluginManager, record: PluginRecord) -> None:
    """Import one plugin and check its hooks; a failure is stored in the record."""
    negotiation = negotiate(record.api_versions or (record.api_version,), record.distribution)
    if negotiation.error:
        return record.fail(negotiation.error, negotiation.advice)
    if manager.has_plugin(record.name):
        return record.fail(f"another plugin is called {record.name!r} too; uninstall one of the two distributions.")
    try:
        plugin = record.entry_point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything at import, SystemExit included
        return record.fail(f"importing it raised {describe_exception(error)}", record.how_to_fix)
    try:
        manager.register(plugin, name=record.name)
        manager.check_pending()
    except Exception as error:
        if manager.has_plugin(record.name):
            manager.unregister(name=record.name)
        advice = _suggested_hook(str(error)) + record.how_to_fix
        return record.fail(
            f"its hooks do not match plugin API {record.api_version}: {describe_exception(error)}", advice
        )
    _record_deprecated_use(plugin, record)
    _warn_about_unmarked_hooks(manager, plugin, record)


def _warn_about_unmarked_hooks(manager: pluggy.PluginManager, plugin: object, record: PluginRecord) -> None:
    """Warn about functions that are named like a hook but lack `@hookimpl`, and about plugins without hooks."""
    marked = {caller.name for caller in manager.get_hookcallers(plugin) or ()}
    unmarked = [
        name
        for name in vars(HookSpecs)
        if not name.startswith("_") and name not in marked and callable(getattr(plugin, name, None))
    ]
    if unmarked:
        names = ", ".join(unmarked)
        record.hint(f"it defines {names} without `@aethermind.plugins.hookimpl`, so no such hook is called.")
        logger.warning("Plugin %s: %s", record.title, record.hints[-1])
    elif not marked:
        record.hint(f"{record.entry_point.value} implements no hook, so it provides nothing.")


def _record_deprecated_use(plugin: object, record: PluginRecord) -> None:
    """Record whether the plugin uses an old version of the plugin API, or deprecated hooks."""
    newest = hookspecs.API_VERSION
    if int(record.api_version) < newest:
        until = f"{newest + 1} of the plugin API"
        old, new = (f"plugin API {number}" for number in (record.api_version, newest))
        record.deprecated.append(deprecation_text(old, instead=new, until=until))
    for name, (instead, until) in hookspecs.DEPRECATED_HOOKS.items():
        if hasattr(plugin, name):
            record.deprecated.append(deprecation_text(f"the hook {name}", instead=instead, until=until))


def _suggested_hook(message: str) -> str:
    """Suggest the nearest hook for a mistyped name."""
    unknown = re.search(r"unknown hook '(\w+)'", message)
    near = difflib.get_close_matches(unknown[1], dir(HookSpecs), 1) if unknown else []
    return f"Its author may have meant {near[0]}. " if near else ""


def call_each(
    manager: pluggy.PluginManager, records: Sequence[PluginRecord], hook: str, **arguments: Any
) -> Iterator[tuple[PluginRecord, list[Any]]]:
    """Call one hook of each loaded plugin separately and yield its results; a failure is stored in the record."""
    for record in [record for record in records if record.error is None]:
        others = [plugin for name, plugin in manager.list_name_plugin() if name != record.name]
        started = time.perf_counter()
        try:
            with collecting_deprecations(record.deprecated), plugin_output_to_stderr(record):
                results = manager.subset_hook_caller(hook, remove_plugins=others)(**arguments)
        except KeyboardInterrupt:
            raise
        except AetherMindError as error:
            record.fail(str(error))
        except BaseException as error:  # a hook may raise anything, SystemExit included
            record.fail(f"{hook} raised {describe_exception(error)}", record.how_to_fix)
        seconds = time.perf_counter() - started
        record.register_ms += seconds * 1e3
        _warn_if_slow(record, f"hook {hook}", seconds)
        if record.error is None:
            yield record, results
