"""Finding and loading plugins: whatever is wrong with one is written into its record in words."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind.plugins import loading
from aethermind.plugins.discovery import PluginRecord, discover
from aethermind.plugins.loading import call_each, load_plugins


def record_of(records: list[PluginRecord], name: str) -> PluginRecord:
    (record,) = [record for record in records if record.name == name]
    return record


def test_discovery_imports_nothing_and_lists_first_party_packages_first(fakes: FakeDistributions) -> None:
    module = fakes.install("zebra", "raise RuntimeError")
    fakes.install("aardvark", "")
    records = discover()
    names = [record.name for record in records]
    own = [record.distribution.startswith("aethermind-") for record in records]
    assert own == sorted(own, reverse=True)
    assert names[-2:] == ["aardvark", "zebra"]
    assert {"aardvark", "zebra", "qwen2"} <= set(names)
    assert module not in sys.modules
    zebra = record_of(records, "zebra")
    assert (zebra.title, zebra.api_version, zebra.status) == ("zebra (fake-zebra 9.9)", "2", "loaded")


OWN_VERSION = version("aethermind-core")


@pytest.mark.parametrize(
    ("distribution", "requires", "is_first_party"),
    [
        ("aethermind-x", f"aethermind-core=={OWN_VERSION}", True),
        ("aethermind-x", f"aethermind-core == {OWN_VERSION}", True),
        ("aethermind-x", "", False),
        ("aethermind-x", f"aethermind-core>={OWN_VERSION}", False),
        ("aethermind-x", "aethermind-core==0.0.1", False),
        ("x", f"aethermind-core=={OWN_VERSION}", False),
    ],
)
def test_packages_released_with_the_core_are_first_party(
    fakes: FakeDistributions, distribution: str, requires: str, is_first_party: bool
) -> None:
    fakes.install("x", "", distribution=distribution, requires=requires)
    assert record_of(discover(), "x").is_first_party is is_first_party


def test_the_allow_list_applies_before_anything_is_loaded(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.install("wanted", "")
    fakes.install("unwanted", "")
    monkeypatch.setenv("AETHERMIND_PLUGINS", "wanted, missing")
    assert [record.name for record in discover()] == ["wanted"]
    monkeypatch.setenv("AETHERMIND_PLUGINS", "")
    assert discover() == []


def test_a_distribution_found_twice_counts_once(fakes: FakeDistributions, tmp_path: Path) -> None:
    fakes.install("twice", "", version="2.0")
    later = tmp_path / "later"
    fakes.write("fake-twice", "[aethermind.plugins.v2]\ntwice = old\n", version="1.0", folder=later)
    sys.path.append(str(later))
    try:
        assert record_of(discover(), "twice").version == "2.0"
    finally:
        sys.path.remove(str(later))


@pytest.mark.parametrize("api_versions", [(1, 2, 3), (3, 2), (0, 1, 2)])
def test_a_plugin_for_several_api_versions_is_used_with_this_one(
    fakes: FakeDistributions, api_versions: tuple[int, ...]
) -> None:
    fakes.install("modern", "", api_versions=api_versions)
    record = record_of(discover(), "modern")
    load_plugins([record])
    assert (record.api_version, record.error) == ("2", None)


def test_unreadable_metadata_of_other_packages_is_skipped(fakes: FakeDistributions) -> None:
    fakes.write("rubbish", "[aethermind.plugins.v2]\nthis is not an entry point\n")
    fakes.install("fine", "")
    assert record_of(discover(), "fine").error is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('no libx.so.')", "importing it raised ImportError: no libx.so."),
        ("raise SystemExit(3)", "importing it raised SystemExit: 3."),
        ("class Odd(BaseException): ...\nraise Odd", "importing it raised Odd: without a message."),
        ("x = (", "importing it raised SyntaxError: "),
        ("import no_such_module", "importing it raised ModuleNotFoundError: No module named 'no_such_module'."),
        (
            "@hookimpl\ndef register_devcies(registry): ...",
            "its hooks do not match plugin API 2: PluginValidationError: unknown hook 'register_devcies'",
        ),
        (
            "@hookimpl\ndef register_devices(registry, colour): ...",
            "its hooks do not match plugin API 2: PluginValidationError: Plugin 'bad' for hook 'register_devices'",
        ),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_recorded(fakes: FakeDistributions, source: str, reason: str) -> None:
    fakes.install("bad", source)
    fakes.install("good", "@hookimpl\ndef doctor_checks(): return []")
    records = [record for record in discover() if record.name in ("bad", "good")]
    manager = load_plugins(records)
    bad, good = records
    assert bad.error is not None
    assert bad.error.startswith(reason)
    assert bad.error.endswith(".")
    assert "\n" not in bad.error
    assert bad.status == "failed"
    assert bad.advice.endswith("Update it (pip install --upgrade fake-bad), or uninstall it.")
    assert good.error is None
    assert not manager.has_plugin("bad")
    assert manager.has_plugin("good")


def test_a_mistyped_hook_gets_the_nearest_name(fakes: FakeDistributions) -> None:
    fakes.install("typo", "@hookimpl\ndef register_devcies(registry): ...")
    record = record_of(discover(), "typo")
    load_plugins([record])
    assert record.advice.startswith("Its author may have meant register_devices. Update")


def test_an_entry_point_without_its_module(fakes: FakeDistributions) -> None:
    fakes.write("ghost", "[aethermind.plugins.v2]\nghost = nowhere.at_all\n")
    record = record_of(discover(), "ghost")
    load_plugins([record])
    assert record.error == "importing it raised ModuleNotFoundError: No module named 'nowhere'."


def test_a_plugin_of_another_api_version_is_not_imported(fakes: FakeDistributions) -> None:
    module = fakes.install("future", "", api_versions=(7,))
    record = record_of(discover(), "future")
    load_plugins([record])
    assert record.error == "it supports plugin API 7, this core supports 1 to 2."
    assert record.advice == (
        "Install a newer core (pip install --upgrade aethermind-core), "
        "or a version of fake-future made for plugin API 2."
    )
    assert module not in sys.modules


def test_two_plugins_of_one_name(fakes: FakeDistributions) -> None:
    fakes.install("same", "", distribution="one")
    fakes.install("same", "", distribution="two")
    first, second = [record for record in discover() if record.name == "same"]
    load_plugins([first, second])
    assert first.error is None
    assert second.error == "another plugin is called 'same' too; uninstall one of the two distributions."


def test_load_times_are_recorded(fakes: FakeDistributions) -> None:
    fakes.install("timed", "raise ImportError")
    record = record_of(discover(), "timed")
    load_plugins([record])
    assert record.load_ms > 0


def test_a_hook_is_called_plugin_by_plugin(fakes: FakeDistributions) -> None:
    fakes.install("a", "@hookimpl\ndef doctor_checks(): return ['a']")
    fakes.install("b", "@hookimpl\ndef doctor_checks(): raise SystemExit")
    fakes.install("c", "")
    fakes.install("d", "@hookimpl\ndef doctor_checks(): return ['d']")
    records = [record for record in discover() if record.name in "abcd"]
    manager = load_plugins(records)
    called = [(record.name, results) for record, results in call_each(manager, records, "doctor_checks")]
    assert called == [("a", [["a"]]), ("c", []), ("d", [["d"]])]
    assert [record.error for record in records] == [
        None,
        "doctor_checks raised SystemExit: without a message.",
        None,
        None,
    ]
    assert [record.name for record, _ in call_each(manager, records, "doctor_checks")] == ["a", "c", "d"]


def test_an_interrupt_is_not_swallowed(fakes: FakeDistributions) -> None:
    fakes.install("impatient", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_plugins([record_of(discover(), "impatient")])


def hints_of(fakes: FakeDistributions, source: str) -> list[str]:
    fakes.install("forgetful", source)
    records = discover()
    load_plugins(records)
    record = record_of(records, "forgetful")
    assert record.error is None
    return record.hints


def test_a_hook_that_is_not_marked_is_a_hint_and_a_warning(
    fakes: FakeDistributions, caplog: pytest.LogCaptureFixture
) -> None:
    marked = "@hookimpl\ndef register_models(registry): pass\n"
    with caplog.at_level(logging.WARNING, "aethermind"):
        (hint,) = hints_of(fakes, f"{marked}def register_devices(registry): pass\ndef doctor_checks(): return []\n")
    assert hint == (
        "it defines register_devices, doctor_checks without `@aethermind.plugins.hookimpl`, so no such hook is called."
    )
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == f"Plugin forgetful (fake-forgetful 9.9): {hint}"


def test_the_marker_of_another_project_marks_nothing(fakes: FakeDistributions) -> None:
    source = "import pluggy\n@pluggy.HookimplMarker('pytest')\ndef register_devices(registry): pass\n"
    (hint,) = hints_of(fakes, source)
    assert hint.startswith("it defines register_devices without")


def test_a_plugin_without_a_hook_gets_a_hint(fakes: FakeDistributions) -> None:
    assert hints_of(fakes, "def helper(): pass\n") == [
        "plugin_of_fake_forgetful_forgetful implements no hook, so it provides nothing."
    ]


def test_a_hook_under_another_functions_name_gives_no_hint(fakes: FakeDistributions) -> None:
    assert hints_of(fakes, "@hookimpl(specname='register_devices')\ndef devices(registry): pass\n") == []


def test_a_slow_plugin_gets_a_warning(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a clock: here everything takes too long."""
    monkeypatch.setattr(loading, "SLOW_S", -1.0)
    fakes.install("slow", "@hookimpl\ndef register_models(registry): pass\n")
    fakes.install("broken", "raise OSError('no libx.so')")
    with caplog.at_level(logging.WARNING, "aethermind"):
        records = [record for record in discover() if record.name in ("slow", "broken", "qwen2")]
        list(call_each(load_plugins(records), records, "register_models", registry=None))
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(" takes ")[0] for message in messages] == ["Plugin slow (fake-slow 9.9)"] * 2
    assert " s for its import, which delays every start." in messages[0]
    assert " s for its hook register_models, which delays every start." in messages[1]
