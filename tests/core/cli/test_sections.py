"""The table of settings: complete, true to the components, and what the manual says."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from aethermind.cli.app import app
from aethermind.cli.configured import ConfiguredCommand
from aethermind.cli.sections import SECTIONS
from aethermind.engine.config import EngineConfig

SETTINGS = [one for section in SECTIONS for one in section.settings.values()]
OF_ONE_CALL = {
    *("prompt", "prompt_file", "text", "file", "token_ids", "directories", "estimate", "as_json"),
    *("json_schema", "regex", "choice", "grammar", "n", "logprobs"),
    *("cost_model", "calibrate", "limit", "rate_scale", "urgent_share", "slack", "plot"),
    *("url", "endpoint", "num_prompts", "concurrency", "request_rate", "slo_ttft_ms", "slo_tpot_ms"),
    *("diff", "tokens", "no_fuse", "rtol", "atol", "trace", "formats", "first_formats", "reuse", "distill"),
}
MANUAL = Path(__file__).parents[3] / "docs" / "using" / "configuration.md"


def leaves(command: Any) -> list[Any]:
    return [leaf for inner in getattr(command, "commands", {}).values() for leaf in leaves(inner)] or [command]


def test_every_option_of_a_configured_verb_is_a_setting() -> None:
    commands = [one for one in leaves(typer.main.get_group(app)) if isinstance(one, ConfiguredCommand)]
    assert {"generate", "explain", "latency"} <= {one.name for one in commands}
    options = {option.name for one in commands for option in one.params} - {
        "config_file",
        "print_config",
        "named_model",
    }
    assert options - OF_ONE_CALL == {one.parameter for one in SETTINGS}


def test_no_two_settings_share_a_parameter_or_a_variable() -> None:
    assert len({one.parameter for one in SETTINGS}) == len(SETTINGS)
    variables = [name for one in SETTINGS for name in one.variables]
    assert len(set(variables)) == len(variables)


def test_defaults_are_those_of_the_engine() -> None:
    ours = {one.key: one.default for one in SETTINGS if one.section in ("model", "engine")}
    theirs = {one.name: one.default for one in fields(EngineConfig) if one.name in ours}
    assert theirs.items() <= ours.items()
    assert len(theirs) == len(ours) - 1


def test_the_manual_lists_every_key() -> None:
    rows = [line for line in MANUAL.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    defaults = [f"unset: {one.unset}" if one.default is None else f"`{json.dumps(one.default)}`" for one in SETTINGS]
    assert rows == [f"| `{one.name}` | {text} | {one.meaning} |" for one, text in zip(SETTINGS, defaults, strict=True)]
