"""Discovers plugins by entry point, loads them and calls their hooks. A failure is recorded, never raised."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint, distributions, version
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.errors import AetherMindError, in_words
from aethermind.log import get_logger
from aethermind.plugins import hookspecs
from aethermind.plugins.compatibility import negotiate, noting, sentence
from aethermind.plugins.hookspecs import ENTRY_POINT_PREFIX, HookSpecs
from aethermind.plugins.stdout_guard import stdout_to_stderr

if TYPE_CHECKING:
    import pluggy

__all__ = [
    "PluginRecord",
    "call_each",
    "discover",
    "fault_of_plugin",
    "load",
    "plugin_names",
    "plugin_output_to_stderr",
]

logger = get_logger(__name__)

SLOW_S = 2.0
"""Seconds after which a slow import or hook gets a warning, because it delays every start."""


@dataclass(slots=True)
class PluginRecord:
    """One entry point and the result of loading it. Mutable: loading and registration fill in the fields with defaults.

    Attributes:
        contracts: every contract that the package offers; `contract` is the chosen one.
        is_first_party: whether the package is released together with this core.
        error: why the plugin cannot be used; `advice` says what to do if the error does not.
        load_ms, register_ms: milliseconds that its import and its hooks took.
        registered: the names that it registered, by kind, such as `devices`.
        deprecated: sentences about its use of things that a coming version removes.
        hints: messages about things that the plugin defines but nothing uses.
    """

    name: str
    distribution: str
    version: str
    contract: str
    entry_point: EntryPoint
    contracts: tuple[str, ...] = ()
    is_first_party: bool = False
    error: str | None = None
    advice: str = ""
    load_ms: float = 0.0
    register_ms: float = 0.0
    registered: dict[str, list[str]] = field(default_factory=dict)
    deprecated: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    @classmethod
    def of_request(cls, request: Mapping[str, str]) -> PluginRecord:
        """Make the record in a child process from its parent's `request`, without fields that only the parent needs."""
        point = EntryPoint(request["name"], request["value"], request["group"])
        return cls(point.name, "", "", _contract_of(point), point)

    @property
    def request(self) -> dict[str, str]:
        """The arguments with which a child process can load this plugin."""
        point = self.entry_point
        return {"name": point.name, "value": point.value, "group": point.group}

    @property
    def status(self) -> str:
        """`loaded`, or `failed`."""
        return "failed" if self.error else "loaded"

    @property
    def title(self) -> str:
        """`name (distribution version)`, the plugin's name in messages."""
        return f"{self.name} ({self.distribution} {self.version})"

    @property
    def repair(self) -> str:
        """Advice that helps against most faults of a package."""
        return f"Update it (pip install --upgrade {self.distribution}), or uninstall it."

    def fail(self, reason: str, advice: str = "") -> None:
        """Record why the plugin cannot be used, and advice if the reason contains none."""
        self.error, self.advice = reason, advice
        logger.info("plugin %s failed: %s", self.title, reason)

    def hint(self, sentence: str) -> None:
        """Record a probable mistake of the plugin's author that is not an error; duplicates are ignored."""
        if sentence not in self.hints:
            self.hints.append(sentence)


def discover() -> list[PluginRecord]:
    """List the entry points of groups `aethermind.plugins.v*` that `AETHERMIND_PLUGINS` allows; imports nothing.

    If two plugins have the same name, the first in this list is loaded and the other fails. First-party packages come
    first, so that a third party's mistake cannot replace what came with the engine; all others follow by name. A
    distribution that offers one name for several contracts counts once, with the contract that `negotiate` chooses.
    """
    allowed = env.plugin_allow_list()
    records: list[PluginRecord] = []
    seen: set[str] = set()
    for distribution in distributions():
        entry_points = _plugin_entry_points(distribution)
        if not entry_points or distribution.name in seen:  # a duplicate further down sys.path
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
    is_first_party = _is_first_party(distribution)
    point = offers[contract]
    return PluginRecord(name, package, str(distribution.version), contract, point, tuple(offers), is_first_party)


def plugin_names() -> frozenset[str]:
    """The names of all installed plugins, whether or not `AETHERMIND_PLUGINS` allows them; imports nothing."""
    return frozenset(point.name for distribution in distributions() for point in _plugin_entry_points(distribution))


def _order(record: PluginRecord) -> tuple[bool, str, str]:
    return not record.is_first_party, record.name, record.distribution


def _is_first_party(distribution: Distribution) -> bool:
    """Whether a package is released in lock-step with the installed core, by its name and its requirements.

    First-party packages are named `aethermind-*` and pin the exact core version; others normally do not. A first-party
    package that an upgrade left behind counts as third-party, because that combination is untested.
    """
    if not distribution.name.startswith("aethermind-"):
        return False
    lock_step = f"aethermind-core=={version('aethermind-core')}"
    return any("".join(requirement.split()) == lock_step for requirement in distribution.requires or ())


def _plugin_entry_points(distribution: Distribution) -> list[EntryPoint]:
    try:
        return [point for point in distribution.entry_points if point.group.startswith(ENTRY_POINT_PREFIX)]
    except Exception as error:  # an unrelated package may have unreadable metadata
        logger.info("skipped a distribution whose entry points cannot be read: %s", error)
        return []


def _contract_of(entry_point: EntryPoint) -> str:
    return entry_point.group.removeprefix(ENTRY_POINT_PREFIX)


def load(records: Sequence[PluginRecord]) -> pluggy.PluginManager:
    """Import each plugin that has not failed yet and check its hooks; records hold the failures."""
    import pluggy

    manager = pluggy.PluginManager("aethermind")
    manager.add_hookspecs(HookSpecs)
    for record in [record for record in records if record.error is None]:
        started = time.perf_counter()
        with noting(record.deprecated), plugin_output_to_stderr(record):
            _load_one(manager, record)
        seconds = time.perf_counter() - started
        record.load_ms = seconds * 1e3
        _warn_if_slow(record, "import", seconds)
    return manager


def plugin_output_to_stderr(record: PluginRecord) -> contextlib.AbstractContextManager[None]:
    """Context for running plugin code while a command starts: stdout of third-party plugins goes to stderr."""
    return contextlib.nullcontext() if record.is_first_party else stdout_to_stderr()


def _warn_if_slow(record: PluginRecord, what: str, seconds: float) -> None:
    """Warn about a third party's slow import or hook, since nothing else shows what delays a start."""
    if seconds > SLOW_S and not record.is_first_party and record.error is None:
        logger.warning(
            "Plugin %s takes %.1f s for its %s, which every start waits for. Its author should import what is heavy "
            "where it is first used.",
            record.title,
            seconds,
            what,
        )


def _load_one(manager: pluggy.PluginManager, record: PluginRecord) -> None:
    """Import and register one plugin, or record what went wrong."""
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
    """Hint at functions named like a hook but without this project's `@hookimpl`."""
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
    """Record whether the plugin uses a deprecated API contract or deprecated hooks."""
    newest = hookspecs.CONTRACT_VERSION
    if int(record.contract) < newest:
        until = f"{newest + 1} of the contract"
        words = sentence(f"plugin contract {record.contract}", instead=f"contract {newest}", until=until)
        record.deprecated.append(words)
    for name, (instead, until) in hookspecs.DEPRECATED_HOOKS.items():
        if hasattr(plugin, name):
            record.deprecated.append(sentence(f"the hook {name}", instead=instead, until=until))


def _suggestion(message: str) -> str:
    """Suggest the nearest hook for a mistyped name."""
    unknown = re.search(r"unknown hook '(\w+)'", message)
    near = difflib.get_close_matches(unknown[1], dir(HookSpecs), 1) if unknown else []
    return f"Its author may have meant {near[0]}. " if near else ""


def call_each(
    manager: pluggy.PluginManager, records: Sequence[PluginRecord], hook: str, **arguments: Any
) -> Iterator[tuple[PluginRecord, list[Any]]]:
    """Call one hook of each loaded plugin separately and yield its results; a failure goes into the plugin's record."""
    for record in [record for record in records if record.error is None]:
        others = [plugin for name, plugin in manager.list_name_plugin() if name != record.name]
        started = time.perf_counter()
        try:
            with noting(record.deprecated), plugin_output_to_stderr(record):
                results = manager.subset_hook_caller(hook, remove_plugins=others)(**arguments)
        except KeyboardInterrupt:
            raise
        except AetherMindError as error:
            record.fail(str(error))
        except BaseException as error:  # as at import
            record.fail(f"{hook} raised {in_words(error)}", record.repair)
        seconds = time.perf_counter() - started
        record.register_ms += seconds * 1e3
        _warn_if_slow(record, f"hook {hook}", seconds)
        if record.error is None:
            yield record, results


def fault_of_plugin(error: BaseException) -> str | None:
    """The third-party plugin and line that raised `error`, `rogue (fake-rogue 9.9), rogue/policy.py:12`; else None.

    Only frames of the core, of first-party packages and of plugins count. The innermost of them is at fault, since
    libraries raise when they are called wrongly.
    """
    owners = {_top_package(record.entry_point.value): record for record in discover()}
    if all(record.is_first_party for record in owners.values()):
        return None
    found: tuple[PluginRecord | None, str] = None, ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        top = _top_package(str(frame.f_globals.get("__name__", "")))
        if top == "aethermind" or top in owners:
            found = owners.get(top), f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    record, where = found
    return None if record is None or record.is_first_party else f"{record.title}, {where}"


def _top_package(name: str) -> str:
    return name.partition(":")[0].partition(".")[0].strip()
