"""Installed plugins, found by their entry points without importing them, and the plugin that raised an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint, distributions, version
from types import TracebackType

from aethermind import env
from aethermind.log import get_logger
from aethermind.plugins.compatibility import negotiate
from aethermind.plugins.hookspecs import ENTRY_POINT_PREFIX

__all__ = ["PluginRecord", "discover", "plugin_names", "plugin_that_raised"]

logger = get_logger(__name__)


@dataclass(slots=True)
class PluginRecord:
    """One entry point and the result of loading it. Mutable: loading and registration fill in the fields with defaults.

    Attributes:
        api_versions: the plugin API versions that the package offers; `api_version` is the chosen one.
        is_first_party: whether the package is released together with this core.
        error: why the plugin cannot be used; `advice` says what to do if the error does not.
        load_ms, register_ms: milliseconds that its import and its hooks took.
        registered: the names that it registered, by kind, such as `devices`.
        deprecated: sentences about its use of things that a later version of the core removes.
        hints: messages about things that the plugin defines but nothing uses.
        replaced: sentences about names of first-party packages that it has taken over.
    """

    name: str
    distribution: str
    version: str
    api_version: str
    entry_point: EntryPoint
    api_versions: tuple[str, ...] = ()
    is_first_party: bool = False
    error: str | None = None
    advice: str = ""
    load_ms: float = 0.0
    register_ms: float = 0.0
    registered: dict[str, list[str]] = field(default_factory=dict)
    deprecated: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)

    @classmethod
    def of_request(cls, request: Mapping[str, str]) -> PluginRecord:
        """Make the record in a child process from its parent's `request`, without fields that only the parent needs."""
        point = EntryPoint(request["name"], request["value"], request["group"])
        return cls(point.name, "", "", _api_version_of(point), point)

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
        """The plugin in messages: `name (distribution version)`."""
        return f"{self.name} ({self.distribution} {self.version})"

    @property
    def how_to_fix(self) -> str:
        """The advice for a plugin that fails: update or uninstall its package."""
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
    distribution that offers one name for several API versions counts once, with the version that `negotiate` chooses.
    """
    allowed, core = env.plugin_allow_list(), version("aethermind-core")
    records: list[PluginRecord] = []
    seen: set[str] = set()
    for distribution in distributions():
        entry_points = _plugin_entry_points(distribution)
        if not entry_points:
            continue
        metadata = distribution.metadata  # read once, since each access parses the file again
        package, own_version = metadata["Name"], metadata["Version"]
        if package in seen:  # a duplicate further down sys.path
            continue
        seen.add(package)
        is_first_party = package.startswith("aethermind-") and _pins_core(distribution, core)
        for name in sorted({point.name for point in entry_points}):
            if allowed is None or name in allowed:
                by_version = {_api_version_of(point): point for point in entry_points if point.name == name}
                api_version = negotiate(tuple(by_version), package).api_version
                point = by_version[api_version]
                records.append(
                    PluginRecord(name, package, own_version, api_version, point, tuple(by_version), is_first_party)
                )
    return sorted(records, key=_sort_key)


def plugin_names() -> frozenset[str]:
    """Return the names of all installed plugins, whether or not `AETHERMIND_PLUGINS` allows them; imports nothing."""
    return frozenset(point.name for distribution in distributions() for point in _plugin_entry_points(distribution))


def _sort_key(record: PluginRecord) -> tuple[bool, str, str]:
    return not record.is_first_party, record.name, record.distribution


def _pins_core(distribution: Distribution, core: str) -> bool:
    """Whether a package requires exactly this version of the core, because it is released in lock-step with it.

    First-party packages are named `aethermind-*` and do; others normally do not. A first-party package that an upgrade
    left behind counts as third-party, because that combination is untested.
    """
    return any("".join(line.split()) == f"aethermind-core=={core}" for line in distribution.requires or ())


def _plugin_entry_points(distribution: Distribution) -> list[EntryPoint]:
    try:
        return [point for point in distribution.entry_points if point.group.startswith(ENTRY_POINT_PREFIX)]
    except Exception as error:  # an unrelated package may have unreadable metadata
        logger.info("skipped a distribution whose entry points cannot be read: %s", error)
        return []


def _api_version_of(entry_point: EntryPoint) -> str:
    return entry_point.group.removeprefix(ENTRY_POINT_PREFIX)


def plugin_that_raised(error: BaseException) -> str | None:
    """Return the third-party plugin and line that raised an error: `rogue (fake-rogue 9.9), rogue/policy.py:12`.

    None if no third-party plugin raised it.
    Of the traceback's frames, those of the core, of first-party packages and of plugins are considered, and the
    innermost decides: a library raises because its caller called it wrongly.
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
