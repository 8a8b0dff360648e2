"""The offline API's options are those of an engine, said once more for whoever reads a signature."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature

from aethermind import LLM
from aethermind.engine.config import EngineConfig

OWN = {"model": "demo", "runtime": None, "on_progress": None}
OF_ENGINES_ALONE = {"swap_threshold"}


def test_options_and_their_defaults_are_those_of_an_engine() -> None:
    theirs = {one.name: one.default for one in fields(EngineConfig) if one.name not in OF_ENGINES_ALONE}
    ours = {name: parameter.default for name, parameter in signature(LLM).parameters.items()}
    assert ours == OWN | theirs
