"""Finding plugins by entry point and loading them so that a broken one is a recorded fact, never a crash."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from typing import TYPE_CHECKING

from aethermind import env
from aethermind.log import get_logger
from aethermind.plugins.hookspecs import CONTRACT_VERSION, ENTRY_POINT_PREFIX, HookSpecs

if TYPE_CHECKING:
    import pluggy

__all__ = ["PluginRecord", "discover", "load"]

logger = get_logger(__name__)


@dataclass(slots=True)
class PluginRecord:
    """One entry point and what became of it. Mutable: loading and registration fill in `error` and `load_ms`."""

    name: str
    distribution: str
    version: str
    contract: str
    entry_point: EntryPoint
    error: str | None = None
    load_ms: float = 0.0

    @property
    def status(self) -> str:
        """`loaded`, or `failed`."""
        return "failed" if self.error else "loaded"

    @property
    def title(self) -> str:
        """`name (distribution version)`, as messages name a plugin."""
        return f"{self.name} ({self.distribution} {self.version})"


def discover() -> list[PluginRecord]:
    """Every entry point of a group `aethermind.plugins.v*`, whatever its version, nothing imported; by name."""
    records: dict[tuple[str, str], PluginRecord] = {}
    for distribution in distributions():
        for entry_point in distribution.entry_points:
            if not entry_point.group.startswith(ENTRY_POINT_PREFIX):
                continue
            contract = entry_point.group.removeprefix(ENTRY_POINT_PREFIX)
            record = PluginRecord(entry_point.name, distribution.name, distribution.version, contract, entry_point)
            records.setdefault((entry_point.name, distribution.name), record)
    allowed = env.plugin_allow_list()
    chosen = [record for record in records.values() if allowed is None or record.name in allowed]
    return sorted(chosen, key=lambda record: (record.name, record.distribution))


def load(records: list[PluginRecord]) -> pluggy.PluginManager:
    """Import each plugin and check its hooks; failures are written into the records."""
    import pluggy

    manager = pluggy.PluginManager("aethermind")
    manager.add_hookspecs(HookSpecs)
    for record in records:
        started = time.perf_counter()
        _load_one(manager, record)
        record.load_ms = (time.perf_counter() - started) * 1e3
        if record.error:
            logger.info("plugin %s failed: %s", record.title, record.error)
    return manager


def _load_one(manager: pluggy.PluginManager, record: PluginRecord) -> None:
    if record.contract != str(CONTRACT_VERSION):
        record.error = (
            f"it speaks plugin contract {record.contract}, this core speaks {CONTRACT_VERSION}; "
            f"install a version of {record.distribution} made for contract {CONTRACT_VERSION}."
        )
        return
    if manager.has_plugin(record.name):
        record.error = f"another plugin is called {record.name!r} too; uninstall one of the two distributions."
        return
    try:
        plugin = record.entry_point.load()
        manager.register(plugin, name=record.name)
        manager.check_pending()
    except BaseException as error:  # a plugin may raise anything at import, SystemExit included
        if isinstance(error, KeyboardInterrupt):
            raise
        if manager.has_plugin(record.name):
            manager.unregister(name=record.name)
        record.error = f"{type(error).__name__}: {error}"
