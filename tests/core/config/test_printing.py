"""A printed configuration is TOML that sets the same values."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st
from tests.core.config.sections import SECTIONS

from aethermind.config import SettingValue, resolve

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    heat=st.integers(0, 2**40),
    rate=st.none() | st.floats(allow_nan=False),
    name=TEXT,
    seeds=st.lists(TEXT).map(tuple),
    origin=TEXT,
)
def test_printed_toml_reads_back(heat: int, rate: float | None, name: str, seeds: tuple[str, ...], origin: str) -> None:
    given_values = {"oven.heat": heat, "oven.rate": rate, "bread.name": name, "bread.seeds": seeds}
    flags = {full: SettingValue(value, origin) for full, value in given_values.items()}
    read = tomllib.loads(resolve(SECTIONS, flags=flags).to_toml())
    oven = {"heat": heat, "door": False} | ({} if rate is None else {"rate": rate})
    assert read == {"oven": oven, "bread": {"name": name, "seeds": list(seeds)}}


def test_each_line_ends_with_the_origin() -> None:
    assert resolve(SECTIONS, variables={"AETHERMIND_HEAT": "9"}).to_toml().splitlines() == [
        "[oven]",
        "heat = 9  # AETHERMIND_HEAT",
        "# rate = ...  # default; unset: the oven's",
        "door = false  # default",
        "",
        "[bread]",
        'name = "rye"  # default',
        "seeds = []  # default",
    ]


def test_the_record_has_values_and_origins() -> None:
    record = resolve(SECTIONS, variables={"AETHERMIND_HEAT": "9"}).to_record()
    assert record["oven"]["heat"] == {"value": 9, "origin": "AETHERMIND_HEAT"}
    assert record["bread"]["seeds"] == {"value": (), "origin": "default"}


def test_passwords_in_urls_are_hidden() -> None:
    found = resolve(SECTIONS, flags={"bread.name": SettingValue("redis://baker:s3cret@oven:6379/0", "--bread")})
    assert 'name = "redis://baker:(hidden)@oven:6379/0"' in found.to_toml()
    assert "s3cret" not in str(found.to_record())
