"""doctor: a complete report also with broken plugins and devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.made_up_host import write_host

HOOK = "from aethermind.plugins import hookimpl\n"


def test_reports_machine_devices_and_plugins(invoke: Any) -> None:
    report = json.loads(invoke("doctor", "--json").stdout)
    assert report["plugin_api_version"] == report["contract"] == 2
    assert report["machine"]["num_cores"] >= 1
    devices = {device["name"]: device for device in report["devices"]}
    assert devices["numpy"]["is_available"]
    assert devices["numpy"]["dtypes"][0] == "float32"
    assert report["auto_device"] in devices
    assert report["auto_device"] != "null"
    assert "demo" in report["models"]
    assert "Qwen2ForCausalLM" in report["architectures"]
    assert report["libraries"]["numpy"]


def test_text_has_the_same_facts_as_json(invoke: Any) -> None:
    result = invoke("doctor")
    assert result.exit_code == 0
    for word in ("Machine", "Devices (auto is ", "Plugins", "numpy", "available", "qwen2", "Qwen3ForCausalLM"):
        assert word in result.stdout


def test_shows_the_topology(invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_host(tmp_path, packages=2, cores_per_node=64, threads_per_core=2)
    monkeypatch.setenv("AETHERMIND_HOST_ROOT", str(root))
    text = invoke("doctor").stdout
    assert "2 packages, 2 NUMA nodes, 128 cores with 256 hardware threads; 128 threads by default" in text
    assert "0 has 64 cores, 68.72 GB; 1 has 64 cores, 68.72 GB" in text
    topology = json.loads(invoke("doctor", "--json").stdout)["machine"]["topology"]
    assert (topology["num_physical_cores"], topology["num_hardware_threads"]) == (128, 256)
    assert topology["numa_nodes"][1]["cpus"] == [*range(64, 128), *range(192, 256)]


def test_devices_are_listed_by_priority(invoke: Any) -> None:
    priorities = [device["priority"] for device in json.loads(invoke("doctor", "--json").stdout)["devices"]]
    assert priorities == sorted(priorities, reverse=True)


def test_names_every_broken_plugin(invoke: Any, broken_plugins: dict[str, str]) -> None:
    result = invoke("doctor")
    assert result.exit_code == 0
    for name, reason in broken_plugins.items():
        assert f"fake-{name} 9.9" in result.stdout
        assert reason in result.stdout
    devices = json.loads(invoke("doctor", "--json").stdout)["devices"]
    assert "aethermind-core" in [device["provider"] for device in devices if device["name"] == "numpy"]


def test_a_device_whose_probe_or_backend_raises_is_absent(invoke: Any, install_plugin: Any) -> None:
    source = (
        "from aethermind.hal.device import Probe\n"
        "@hookimpl\n"
        "def register_devices(registry):\n"
        "    registry.register('badprobe', probe=lambda: 1 / 0, open=None, priority=99, provider='fake')\n"
        "    registry.register('badopen', probe=lambda: Probe(1, 'here'), open=lambda: 1 / 0, provider='fake')\n"
    )
    install_plugin("baddevices", HOOK + source)
    devices = {device["name"]: device for device in json.loads(invoke("doctor", "--json").stdout)["devices"]}
    for name in ("badprobe", "badopen"):
        assert not devices[name]["is_available"]
        assert "ZeroDivisionError" in devices[name]["reason"]


def test_a_crashing_probe_makes_its_device_broken_and_names_the_package(invoke: Any, install_plugin: Any) -> None:
    source = (
        "import ctypes\n"
        "@hookimpl\n"
        "def register_devices(registry):\n"
        "    registry.register('rogue', probe=lambda: ctypes.string_at(0), open=None, priority=99, provider='rogue')\n"
    )
    install_plugin("rogue", HOOK + source)
    result = invoke("doctor")
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if line.split()[:2] == ["rogue", "broken"]]
    assert line.endswith("its probe crashed with signal 11 (SIGSEGV). Update or uninstall fake-rogue")
    assert "Devices (auto is cpu)" in result.stdout
    asked = invoke("generate", "hi", "--device", "rogue")
    assert asked.exit_code == 2
    assert "Device 'rogue' is not available: its probe crashed with signal 11 (SIGSEGV)" in asked.stderr


def test_help_runs_no_probe(invoke: Any, install_plugin: Any, tmp_path: Path) -> None:
    source = (
        "from pathlib import Path\n"
        "@hookimpl\n"
        "def register_devices(registry):\n"
        f"    registry.register('rogue', probe=Path({str(tmp_path / 'asked')!r}).touch, open=None, provider='rogue')\n"
    )
    install_plugin("rogue", HOOK + source)
    assert invoke("--help").exit_code == 0
    assert not (tmp_path / "asked").exists()
    invoke("doctor")
    assert (tmp_path / "asked").exists()


def test_runs_the_checks_of_plugins(invoke: Any, install_plugin: Any) -> None:
    check = "@hookimpl\ndef doctor_checks():\n    return [('pulse', lambda: {result})]\n"
    install_plugin("alive", HOOK + check.format(result="'72 a minute'"))
    install_plugin("dead", HOOK + check.format(result="1 / 0"))
    install_plugin("unborn", HOOK + "@hookimpl\ndef doctor_checks():\n    1 / 0\n")
    report = json.loads(invoke("doctor", "--json").stdout)
    checks = {check["plugin"]: check["result"] for check in report["checks"]}
    assert checks["alive"] == "72 a minute"
    assert "ZeroDivisionError" in checks["dead"]
    (unborn,) = [plugin for plugin in report["plugins"] if plugin["name"] == "unborn"]
    assert "doctor_checks raised ZeroDivisionError" in unborn["error"]


def test_says_when_an_allow_list_is_set(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "qwen2")
    assert "AETHERMIND_PLUGINS lets only these load: qwen2" in invoke("doctor").stdout
