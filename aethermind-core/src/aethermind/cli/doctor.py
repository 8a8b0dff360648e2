"""`aethermind doctor`: a report on the machine, its devices, the installed packages and their errors."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from typing import TYPE_CHECKING, Any

from aethermind import env
from aethermind.cli import console, options
from aethermind.cli.plugins import boot, disabling_advice, plugin_records, plugin_rows
from aethermind.errors import AetherMindError
from aethermind.first_party import pip_install_command
from aethermind.plugins import API_VERSION
from aethermind.plugins.doctor_checks import run_checks
from aethermind.plugins.hookspecs import ENTRY_POINT_PREFIX
from aethermind.runtime.isolated_devices import device_record

if TYPE_CHECKING:
    from aethermind.hal.registry import DeviceEntry
    from aethermind.runtime import Runtime

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = console.examples("aethermind doctor", "aethermind doctor --json")

_LIBRARIES = ("numpy", "ml_dtypes", "tokenizers", "safetensors", "jinja2", "pluggy", "typer", "rich")


def doctor(as_json: options.AsJson = False) -> None:
    """Report on the machine, its devices and the installed plugins."""
    report = examine(boot())
    if as_json:
        unmet = [asdict(requirement) for requirement in report["unmet_requirements"]]
        console.print_json({**report, "plugins": plugin_records(report["plugins"]), "unmet_requirements": unmet})
    else:
        _print_report(report)


def examine(runtime: Runtime) -> dict[str, Any]:
    """Return the report of `doctor`. The failure of a plugin or device is part of it and raises nothing."""
    devices = [_device_record(entry) for entry in runtime.devices]
    usable = [device["name"] for device in devices if device["is_available"] and device["priority"] >= 0]
    allowed = env.plugin_allow_list()
    return {
        "version": console.version(),
        "plugin_api_version": API_VERSION,
        "contract": API_VERSION,  # its deprecated name, kept while plugin API version 1 is supported
        "machine": _machine_record(),
        "devices": devices,
        "auto_device": usable[0] if usable else None,
        "plugins": runtime.plugins,
        "unmet_requirements": unmet_requirements(),
        "plugin_allow_list": None if allowed is None else sorted(allowed),
        "models": runtime.models.names(),
        "architectures": runtime.architectures.names(),
        "libraries": _versions(),
        "checks": [
            {"plugin": plugin, "title": title, "result": result}
            for plugin, title, result in run_checks(runtime.manager, runtime.plugins)
        ],
    }


def _machine_record() -> dict[str, Any]:
    from aethermind.hal.host_memory import host_memory_bytes
    from aethermind.hal.topology import host_topology

    topology = host_topology()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor_name(),
        "machine": platform.machine(),
        "num_cores": os.cpu_count(),
        "num_usable_cores": len(topology.cpus),
        "topology": topology.as_record(),
        "topology_summary": topology.describe(),
        "memory_bytes": host_memory_bytes(),
        "python": platform.python_version(),
        "python_executable": sys.executable,
    }


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, "") or platform.processor()
    except OSError:
        return platform.processor() or "unknown"


def _device_record(entry: DeviceEntry) -> dict[str, Any]:
    """Probe a device, and open it if it is available to read its properties."""
    device: dict[str, Any] = {"name": entry.name, "priority": entry.priority, "provider": entry.provider}
    try:
        probe = entry.probe()
        device |= {"is_available": probe.is_available, "count": probe.count, "reason": probe.reason}
        device["is_broken"] = probe.is_broken
        if probe.is_available:
            device |= _backend_record(entry)
    except Exception as error:
        reason = str(error) if isinstance(error, AetherMindError) else f"{type(error).__name__}: {error}"
        device |= {"is_available": False, "count": 0, "reason": reason, "is_broken": True}
    return device


def _backend_record(entry: DeviceEntry) -> dict[str, Any]:
    """Return the properties of a device. A third-party one is opened in a child process, where it may crash."""
    if entry.examine is not None:
        return entry.examine()
    with closing(entry.open()) as backend:
        return device_record(backend)


def _versions() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _print_report(report: dict[str, Any]) -> None:
    machine = report["machine"]
    memory = console.quantity(machine["memory_bytes"], "B") if machine["memory_bytes"] else "unknown"
    print(f"AetherMind {report['version']}, plugin API {report['plugin_api_version']}")
    rows = [
        ("system", f"{machine['system']} ({machine['machine']})"),
        ("processor", machine["processor"]),
        ("cores", f"{machine['num_cores']}, of which this process may use {machine['num_usable_cores']}"),
        ("topology", machine["topology_summary"]),
        *_node_rows(machine["topology"]["numa_nodes"]),
        ("memory", memory),
        ("python", f"{machine['python']} ({machine['python_executable']})"),
    ]
    _print_section("Machine", rows)
    _print_section(f"Devices (auto is {report['auto_device'] or 'none'})", [_device_row(d) for d in report["devices"]])
    _print_section("Plugins", plugin_rows(report["plugins"]) or [(f"none; run `{pip_install_command('aethermind')}`",)])
    for line in disabling_advice(report["plugins"]):
        print(f"  {line}")
    if report["plugin_allow_list"] is not None:
        print(f"  AETHERMIND_PLUGINS lets only these load: {', '.join(report['plugin_allow_list']) or 'none'}")
    if unmet := report["unmet_requirements"]:
        rows = [(f"{requirement.distribution} {requirement.version}", requirement.summary) for requirement in unmet]
        _print_section("Versions that do not fit each other", [*rows, (how_to_meet(unmet),)])
    installed = [(name, ", ".join(report[name]) or "none") for name in ("models", "architectures")]
    libraries = ", ".join(f"{name} {number or 'missing'}" for name, number in report["libraries"].items())
    _print_section("Installed", [*installed, ("libraries", libraries)])
    if report["checks"]:
        _print_section("Checks", [(check["plugin"], check["title"], check["result"]) for check in report["checks"]])


def _node_rows(nodes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """One row on the NUMA nodes where there are several."""
    if len(nodes) == 1:
        return []
    each = (
        f"{node['node']} has {node['num_physical_cores']} cores, {console.quantity(node['memory_bytes'], 'B')}"
        for node in nodes
    )
    return [("NUMA nodes", "; ".join(each))]


def _print_section(title: str, rows: list[Any]) -> None:
    print(f"\n{console.style(title, 'bold', sys.stdout)}\n{console.columns(rows)}")


def _device_row(device: dict[str, Any]) -> tuple[str, ...]:
    state = "broken" if device["is_broken"] else "available" if device["is_available"] else "absent"
    details = [device["reason"].removesuffix(".")]
    if device.get("isa"):
        details.append(" ".join(device["isa"]))
    details += [f"{name} {value}" for name, value in device.get("details", {}).items()]
    if device.get("dtypes"):
        details.append(", ".join(device["dtypes"]))
    return device["name"], state, f"priority {device['priority']}", device["provider"], "; ".join(details)


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A package whose requirement of a first-party package is not met; `installed` is None if that one is missing."""

    distribution: str
    version: str
    requires: str
    installed: str | None

    @property
    def summary(self) -> str:
        """`requires aethermind-core==0.1.0, but 0.2.0 is installed`."""
        state = "it is not installed" if self.installed is None else f"{self.installed} is installed"
        return f"requires {self.requires}, but {state}"


def unmet_requirements() -> list[UnmetRequirement]:
    """List the unmet requirements that first-party packages and plugins have of first-party packages, by name."""
    found: dict[str, list[UnmetRequirement]] = {}
    for distribution in distributions():
        name = str(distribution.name)
        is_shadowed = name in found  # Python imports the first distribution on sys.path
        if not is_shadowed and (_is_first_party(name) or _is_plugin(distribution)):
            found[name] = _unmet(distribution)
    return [unmet for name in sorted(found) for unmet in found[name]]


def how_to_meet(unmet: Sequence[UnmetRequirement]) -> str:
    """Return the advice to update all packages together, so that pip chooses compatible versions."""
    names = sorted({"aethermind-core"} | {requirement.distribution for requirement in unmet})
    return f"Let pip choose versions that fit: pip install --upgrade {' '.join(names)}"


def _unmet(distribution: Distribution) -> list[UnmetRequirement]:
    from packaging.requirements import InvalidRequirement, Requirement

    unmet = []
    for line in distribution.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if not _is_first_party(requirement.name) or (requirement.marker and not requirement.marker.evaluate()):
            continue
        installed = _version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            unmet.append(UnmetRequirement(str(distribution.name), str(distribution.version), wanted, installed))
    return unmet


def _is_first_party(name: str) -> bool:
    return name == "aethermind" or name.startswith("aethermind-")


def _is_plugin(distribution: Distribution) -> bool:
    try:
        return any(point.group.startswith(ENTRY_POINT_PREFIX) for point in distribution.entry_points)
    except Exception:  # an unrelated package may have unreadable metadata
        return False


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
