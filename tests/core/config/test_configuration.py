"""Layers: the highest one wins, and every one is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.config.sections import SECTIONS
from tests.scale import scaled

from aethermind.config import SettingValue, resolve
from aethermind.errors import SettingsError

NAMES = ("oven.heat", "oven.rate", "bread.name", "bread.seeds")
GIVEN = {
    "file": {"oven.heat": "1", "oven.rate": "1.5", "bread.name": '"file"', "bread.seeds": '["file"]'},
    "variable": {"oven.heat": "2", "oven.rate": "2.5", "bread.name": "variable", "bread.seeds": '["variable"]'},
    "flag": {"oven.heat": 3, "oven.rate": 3.5, "bread.name": "flag", "bread.seeds": ("flag",)},
}
WANTED = {
    "default": {"oven.heat": 180, "oven.rate": None, "bread.name": "rye", "bread.seeds": ()},
    "file": {"oven.heat": 1, "oven.rate": 1.5, "bread.name": "file", "bread.seeds": ("file",)},
    "variable": {"oven.heat": 2, "oven.rate": 2.5, "bread.name": "variable", "bread.seeds": ("variable",)},
    "flag": GIVEN["flag"],
}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=scaled(6000),
    deadline=None,
)
@given(chosen=st.fixed_dictionaries({layer: st.sets(st.sampled_from(NAMES)) for layer in GIVEN}))
def test_the_highest_layer_wins_for_every_setting(tmp_path: Path, chosen: dict[str, set[str]]) -> None:
    file = tmp_path / "a.toml"
    file.write_text("".join(f"{name} = {GIVEN['file'][name]}\n" for name in sorted(chosen["file"])))
    variables = {
        f"AETHERMIND_{name}".upper().replace(".", "__"): GIVEN["variable"][name] for name in chosen["variable"]
    }
    flags = {name: SettingValue(GIVEN["flag"][name], "flag --it") for name in chosen["flag"]}
    result = resolve(SECTIONS, file=file, variables=variables, flags=flags)
    for name in NAMES:
        highest = next((layer for layer in ("flag", "variable", "file") if name in chosen[layer]), "default")
        origins = {
            "default": "default",
            "file": f"{file}:{name}",
            "variable": f"AETHERMIND_{name}".upper().replace(".", "__"),
            "flag": "flag --it",
        }
        assert result.values[name] == (WANTED[highest][name], origins[highest])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ovn: {}", "F has an unknown section 'ovn'; did you mean oven? Sections are oven, bread."),
        ("1: {}", "F has an unknown section 1. Sections are oven, bread."),
        ("oven: 3", "F gives oven the value 3. It is a section: put keys into it."),
        (
            "oven: {haet: 3}",
            "F has an unknown key oven.haet; did you mean oven.heat? Keys of oven are heat, rate, door.",
        ),
        ("bread: {heat: 3}", "F has an unknown key bread.heat; did you mean oven.heat? Keys of bread are name, seeds."),
        ("oven: {heat: '3'}", "F:oven.heat is '3': oven.heat should be a valid integer."),
        ("oven: {heat: true}", "F:oven.heat is True: oven.heat should be a valid integer."),
        ("oven: {heat: null}", "F:oven.heat is None: oven.heat should be a valid integer."),
        ("oven: {heat: {a: 1}}", "F:oven.heat is {'a': 1}: oven.heat should be a valid integer."),
        ("oven: {heat: -1}", "F:oven.heat: heat should be positive, got -1."),
        ("oven: {door: 1}", "F:oven.door is 1: oven.door should be a valid boolean."),
        ("bread: {seeds: [1]}", "F:bread.seeds is [1]: bread.seeds should be a valid string."),
        ("oven: {heat: 300, door: true}", "F:oven.door, F:oven.heat: The door is open: lower heat."),
    ],
)
def test_errors_in_a_file(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        resolve(SECTIONS, file=file, variables={"AETHERMIND_OVEN__HEAT": "7"} if "300" not in content else {})
    assert str(caught.value).replace(str(file), "F") == message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("OVEN__HEAT", "hot", "AETHERMIND_OVEN__HEAT is 'hot': oven.heat should be a valid integer."),
        ("HEAT", "-1", "AETHERMIND_HEAT: heat should be positive, got -1."),
        ("OVEN__DOOR", "ajar", "AETHERMIND_OVEN__DOOR is 'ajar': oven.door should be a valid boolean."),
        ("BREAD__SEEDS", "[", "AETHERMIND_BREAD__SEEDS is '[' but should be a JSON list: "),
    ],
)
def test_errors_in_a_variable(name: str, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(SECTIONS, variables={f"AETHERMIND_{name}": text})
    assert str(caught.value).startswith(message)


def test_a_variable_is_read_as_its_setting_s_type() -> None:
    variables = {
        "AETHERMIND_OVEN__DOOR": "yes",
        "AETHERMIND_OVEN__RATE": "1e-3",
        "AETHERMIND_BREAD__SEEDS": "poppy",
        "AETHERMIND_BREAD__NAME": "",
    }
    values = resolve(SECTIONS, variables=variables).values
    assert values["oven.door"].value is True
    assert values["oven.rate"].value == 0.001
    assert values["bread.seeds"].value == ("poppy",)
    assert values["bread.name"] == ("rye", "default")


def test_a_short_variable_and_the_regular_one_must_agree() -> None:
    both = {"AETHERMIND_HEAT": "1", "AETHERMIND_OVEN__HEAT": "1"}
    assert resolve(SECTIONS, variables=both).values["oven.heat"].value == 1
    with pytest.raises(
        SettingsError, match=r"^AETHERMIND_OVEN__HEAT=1 and AETHERMIND_HEAT=2 both set oven.heat\. Unset one of them"
    ):
        resolve(SECTIONS, variables={**both, "AETHERMIND_HEAT": "2"})


def test_a_section_may_be_empty_and_a_list_of_one_a_string(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("oven:\nbread:\n  seeds: poppy\n")
    values = resolve(SECTIONS, file=tmp_path / "a.yaml").values
    assert values["bread.seeds"].value == ("poppy",)


def test_a_deprecated_key_or_variable_sets_the_setting_that_replaces_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("oven: {temperature: 7}")
    assert resolve(SECTIONS, file=file).values["oven.heat"] == (7, f"{file}:oven.temperature")
    assert "oven.temperature is deprecated; use oven.heat" in caplog.text
    variables = {"AETHERMIND_OVEN__TEMPERATURE": "8"}
    assert resolve(SECTIONS, variables=variables).values["oven.heat"].value == 8
    file.write_text("oven: {temperature: 7, heat: 8}")
    with pytest.raises(
        SettingsError, match=r"has oven.temperature and oven.heat, which mean the same\. Keep oven.heat"
    ):
        resolve(SECTIONS, file=file)
