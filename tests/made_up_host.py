"""Descriptions of machines that do not exist: the files of sysfs, procfs and control groups under a directory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write files, each with its path below the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def write_host(
    root: Path,
    *,
    packages: int = 1,
    nodes_per_package: int = 1,
    cores_per_node: int = 2,
    threads_per_core: int = 1,
    gib_of_node: Mapping[int, int] | None = None,
    offline: Collection[int] = (),
    allowed: str | None = None,
    allowed_nodes: str | None = None,
) -> Path:
    """Write a machine as Linux numbers it: first one hardware thread of each core, node by node, then the second ones.

    Nodes have 64 GiB unless `gib_of_node` says otherwise. Offline processors have no topology, as in sysfs.
    """
    num_nodes = packages * nodes_per_package
    num_cores = num_nodes * cores_per_node
    cpus = range(num_cores * threads_per_core)
    online = [cpu for cpu in cpus if cpu not in offline]
    files = {f"{_CPU}/online": listed(online), f"{_NODE}/online": listed(range(num_nodes))}
    for cpu in online:
        core = cpu % num_cores
        siblings = [core + thread * num_cores for thread in range(threads_per_core)]
        files[f"{_CPU}/cpu{cpu}/topology/physical_package_id"] = str(core // (cores_per_node * nodes_per_package))
        files[f"{_CPU}/cpu{cpu}/topology/core_id"] = str(core % (cores_per_node * nodes_per_package))
        files[f"{_CPU}/cpu{cpu}/topology/core_cpus_list"] = listed(set(siblings) & set(online))
    for node in range(num_nodes):
        of_node = [cpu for cpu in online if cpu % num_cores // cores_per_node == node]
        kib = (gib_of_node or {}).get(node, 64) << 20
        distances = [
            10 if node == other else 12 if node // nodes_per_package == other // nodes_per_package else 32
            for other in range(num_nodes)
        ]
        files[f"{_NODE}/node{node}/cpulist"] = listed(of_node)
        files[f"{_NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree: 1 kB"
        files[f"{_NODE}/node{node}/distance"] = " ".join(map(str, distances))
    mems = allowed_nodes or listed(range(num_nodes))
    files["proc/self/status"] = f"Name:\tx\nCpus_allowed_list:\t{allowed or listed(cpus)}\nMems_allowed_list:\t{mems}"
    write_files(root, files)
    return root


def listed(numbers: Collection[int]) -> str:
    """The kernel's list of numbers: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
