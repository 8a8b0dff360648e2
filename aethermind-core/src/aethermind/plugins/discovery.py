"""Finding plugins by entry point and loading them so that a broken one is a recorded fact, never a crash."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint, distributions, version
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.errors import AetherMindError, in_words
from aethermind.log import get_logger
from aethermind.plugins import hookspecs
from aethermind.plugins.contracts import negotiate
from aethermind.plugins.deprecation import noting, sentence
from aethermind.plugins.hookspecs import ENTRY_POINT_PREFIX, HookSpecs
from aethermind.plugins.stdout_guard import stdout_to_stderr

if TYPE_CHECKING:
    import pluggy

__all__ = ["PluginRecord", "call_each", "discover", "load", "own_code", "plugin_names"]

logger = get_logger(__name__)

SLOW_S = 2.0
"""Seconds of an import or a hook, which every start waits for, that are worth a warning."""


@dataclass(slots=True)
class PluginRecord:
    """One entry point and what became of it. Mutable: loading and registration fill in what has a default.

    `contracts` are all that it offers. `is_ours` says that the package is released together with this core.
    `registered` are names by kind, such as `devices`; `load_ms` is the time that its import took, `register_ms` that of
    its hooks. `advice` says what to do about `error` where that does not; `deprecated` are sentences about what it uses
    that a coming version gives up, `hints` about what it offers that nothing uses.
    """

    name: str
    distribution: str
    version: str
    contract: str
    entry_point: EntryPoint
    contracts: tuple[str, ...] = ()
    is_ours: bool = False
    error: str | None = None
    advice: str = ""
    load_ms: float = 0.0
    register_ms: float = 0.0
    registered: dict[str, list[str]] = field(default_factory=dict)
    deprecated: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    @classmethod
    def of_request(cls, request: Mapping[str, str]) -> PluginRecord:
        """In a child process: the plugin that `request` asked for, without what only its parent needs to know."""
        point = EntryPoint(request["name"], request["value"], request["group"])
        return cls(point.name, "", "", _contract_of(point), point)

    @property
    def request(self) -> dict[str, str]:
        """What a child process has to be told to load this plugin."""
        point = self.entry_point
        return {"name": point.name, "value": point.value, "group": point.group}

    @property
    def status(self) -> str:
        """`loaded`, or `failed`."""
        return "failed" if self.error else "loaded"

    @property
    def title(self) -> str:
        """`name (distribution version)`, as messages name a plugin."""
        return f"{self.name} ({self.distribution} {self.version})"

    @property
    def repair(self) -> str:
        """What helps against most of what can be wrong with a package."""
        return f"Update it (pip install --upgrade {self.distribution}), or uninstall it."

    def fail(self, reason: str, advice: str = "") -> None:
        """Record why the plugin cannot be used, and what to do unless the reason says that."""
        self.error, self.advice = reason, advice
        logger.info("plugin %s failed: %s", self.title, reason)

    def hint(self, sentence: str) -> None:
        """Record, once, what its author overlooked though nothing failed."""
        if sentence not in self.hints:
            self.hints.append(sentence)


def discover() -> list[PluginRecord]:
    """Every entry point of a group `aethermind.plugins.v*` that `AETHERMIND_PLUGINS` allows; imports nothing.

    Where two plugins claim one thing the first has it: those that are released with the core come first, so that a
    stranger's mistake cannot take away what came with the engine, and all others by name. A distribution that offers
    one name for several contracts counts once, with the contract that `plugins.contracts` chooses.
    """
    allowed = env.plugin_allow_list()
    records: list[PluginRecord] = []
    seen: set[str] = set()
    for distribution in distributions():
        entry_points = _plugin_entry_points(distribution)
        if not entry_points or distribution.name in seen:  # found again further down sys.path
            continue
        seen.add(distribution.name)
        for name in sorted({point.name for point in entry_points}):
            if allowed is None or name in allowed:
                offers = [point for point in entry_points if point.name == name]
                records.append(_record_of(distribution, name, {_contract_of(point): point for point in offers}))
    return sorted(records, key=_order)


def _record_of(distribution: Distribution, name: str, offers: dict[str, EntryPoint]) -> PluginRecord:
    package = str(distribution.name)
    contract = negotiate(tuple(offers), package).contract
    is_ours = _is_ours(distribution)
    return PluginRecord(name, package, str(distribution.version), contract, offers[contract], tuple(offers), is_ours)


def plugin_names() -> frozenset[str]:
    """The names of all installed plugins, whether or not `AETHERMIND_PLUGINS` lets them load; imports nothing."""
    return frozenset(point.name for distribution in distributions() for point in _plugin_entry_points(distribution))


def _order(record: PluginRecord) -> tuple[bool, str, str]:
    return not record.is_ours, record.name, record.distribution


def _is_ours(distribution: Distribution) -> bool:
    """Whether it is released in lock-step with the installed core, as its name and its requirements say.

    A stranger's package is named as it likes and takes a range of versions; one of ours that was left behind by an
    upgrade is treated like a stranger's, because nobody has tried the two together.
    """
    if not distribution.name.startswith("aethermind-"):
        return False
    own = f"aethermind-core=={version('aethermind-core')}"
    return any("".join(requirement.split()) == own for requirement in distribution.requires or ())


def _plugin_entry_points(distribution: Distribution) -> list[EntryPoint]:
    try:
        return [point for point in distribution.entry_points if point.group.startswith(ENTRY_POINT_PREFIX)]
    except Exception as error:  # whatever else is installed may have unreadable metadata
        logger.info("skipped a distribution whose entry points cannot be read: %s", error)
        return []


def _contract_of(entry_point: EntryPoint) -> str:
    return entry_point.group.removeprefix(ENTRY_POINT_PREFIX)


def load(records: Sequence[PluginRecord]) -> pluggy.PluginManager:
    """Import each plugin that has not failed yet and check its hooks; failures are written into the records."""
    import pluggy

    manager = pluggy.PluginManager("aethermind")
    manager.add_hookspecs(HookSpecs)
    for record in [record for record in records if record.error is None]:
        started = time.perf_counter()
        with noting(record.deprecated), own_code(record):
            _load_one(manager, record)
        seconds = time.perf_counter() - started
        record.load_ms = seconds * 1e3
        _warn_of_slowness(record, "import", seconds)
    return manager


def own_code(record: PluginRecord) -> contextlib.AbstractContextManager[None]:
    """A block in which a plugin's code runs while a command starts: what a third party's prints goes to stderr."""
    return contextlib.nullcontext() if record.is_ours else stdout_to_stderr()


def _warn_of_slowness(record: PluginRecord, what: str, seconds: float) -> None:
    """Nothing says otherwise whom a start waits for. Packages released with the core are known to be quick."""
    if seconds > SLOW_S and not record.is_ours and record.error is None:
        logger.warning(
            "Plugin %s takes %.1f s for its %s, which every start waits for. Its author should import what is heavy "
            "where it is first used.",
            record.title,
            seconds,
            what,
        )


def _load_one(manager: pluggy.PluginManager, record: PluginRecord) -> None:
    """Import and register one plugin, or let its record say what went wrong."""
    negotiation = negotiate(record.contracts or (record.contract,), record.distribution)
    if negotiation.error:
        return record.fail(negotiation.error, negotiation.advice)
    if manager.has_plugin(record.name):
        return record.fail(f"another plugin is called {record.name!r} too; uninstall one of the two distributions.")
    try:
        plugin = record.entry_point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything at import, SystemExit included
        return record.fail(f"importing it raised {in_words(error)}", record.repair)
    try:
        manager.register(plugin, name=record.name)
        manager.check_pending()
    except Exception as error:
        if manager.has_plugin(record.name):
            manager.unregister(name=record.name)
        advice = _suggestion(str(error)) + record.repair
        return record.fail(f"its hooks do not fit contract {record.contract}: {in_words(error)}", advice)
    _note_age(plugin, record)
    _note_unmarked(manager, plugin, record)


def _note_unmarked(manager: pluggy.PluginManager, plugin: object, record: PluginRecord) -> None:
    """For the author who forgot `@hookimpl`, or took another project's: functions that have a hook's name only."""
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


def _note_age(plugin: object, record: PluginRecord) -> None:
    """What the plugin is made for that goes: an older contract, or hooks."""
    newest = hookspecs.CONTRACT_VERSION
    if int(record.contract) < newest:
        until = f"{newest + 1} of the contract"
        words = sentence(f"plugin contract {record.contract}", instead=f"contract {newest}", until=until)
        record.deprecated.append(words)
    for name, (instead, until) in hookspecs.DEPRECATED_HOOKS.items():
        if hasattr(plugin, name):
            record.deprecated.append(sentence(f"the hook {name}", instead=instead, until=until))


def _suggestion(message: str) -> str:
    """For the author who mistyped a hook's name."""
    unknown = re.search(r"unknown hook '(\w+)'", message)
    near = difflib.get_close_matches(unknown[1], dir(HookSpecs), 1) if unknown else []
    return f"Its author may have meant {near[0]}. " if near else ""


def call_each(
    manager: pluggy.PluginManager, records: Sequence[PluginRecord], hook: str, **arguments: Any
) -> Iterator[tuple[PluginRecord, list[Any]]]:
    """Call one hook of every loaded plugin on its own and yield its results; a failure is written into the record."""
    for record in [record for record in records if record.error is None]:
        others = [plugin for name, plugin in manager.list_name_plugin() if name != record.name]
        started = time.perf_counter()
        try:
            with noting(record.deprecated), own_code(record):
                results = manager.subset_hook_caller(hook, remove_plugins=others)(**arguments)
        except KeyboardInterrupt:
            raise
        except AetherMindError as error:
            record.fail(str(error))
        except BaseException as error:  # as at import
            record.fail(f"{hook} raised {in_words(error)}", record.repair)
        seconds = time.perf_counter() - started
        record.register_ms += seconds * 1e3
        _warn_of_slowness(record, f"hook {hook}", seconds)
        if record.error is None:
            yield record, results
