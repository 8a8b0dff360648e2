"""A section: the settings that its dataclass declares."""

from __future__ import annotations

from tests.core.config.sections import SECTIONS


def test_fields_are_settings_in_order() -> None:
    oven, bread = SECTIONS
    assert list(oven.settings) == ["heat", "rate", "door"]
    heat = oven.settings["heat"]
    assert (heat.name, heat.type, heat.default, heat.help) == ("oven.heat", int, 180, "degrees")
    assert heat.variables == ("AETHERMIND_OVEN__HEAT", "AETHERMIND_HEAT", "AETHERMIND_OVEN__TEMPERATURE")
    assert oven.settings["rate"].variables == ("AETHERMIND_OVEN__RATE",)
    assert oven.settings["rate"].unset == "the oven's"
    assert (bread.settings["name"].parameter, bread.settings["seeds"].parameter) == ("bread", "seeds")
