"""The table of settings: complete, consistent with the engine, and listed in the manual."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

import pytest
import typer
from release.settings_reference import PAGE, with_tables

from aethermind.cli.app import app
from aethermind.cli.configured import ConfiguredCommand
from aethermind.cli.settings import SECTIONS
from aethermind.engine.config import EngineConfig

SETTINGS = [one for section in SECTIONS for one in section.settings.values()]
OF_ONE_CALL = {
    *("prompt", "prompt_file", "text", "file", "token_ids", "directories", "estimate", "as_json"),
    *("json_schema", "regex", "choice", "grammar", "n", "logprobs"),
    *("cost_model", "calibrate", "limit", "rate_scale", "urgent_share", "slack", "plot"),
    *("url", "endpoint", "num_prompts", "concurrency", "request_rate", "slo_ttft_ms", "slo_tpot_ms"),
    *("diff", "tokens", "no_fuse", "rtol", "atol", "trace", "formats", "first_formats", "requests"),
    *("results", "input_file", "output_file", "resume"),
    *("to", "out", "force", "imatrix", "imatrix_tokens", "quality", "quality_tokens"),
    *("mcp", "mcp_allow"),
}


def leaves(command: Any) -> list[Any]:
    return [leaf for inner in getattr(command, "commands", {}).values() for leaf in leaves(inner)] or [command]


def test_every_option_of_a_configured_verb_is_a_setting() -> None:
    commands = [one for one in leaves(typer.main.get_group(app)) if isinstance(one, ConfiguredCommand)]
    assert {"generate", "explain", "latency"} <= {one.name for one in commands}
    options = {option.name for one in commands for option in one.params} - {
        "config_file",
        "print_config",
        "positional_model",
    }
    assert options - OF_ONE_CALL == {one.parameter for one in SETTINGS}


def test_no_two_settings_share_a_parameter_or_a_variable() -> None:
    assert len({one.parameter for one in SETTINGS}) == len(SETTINGS)
    variables = [name for one in SETTINGS for name in one.variables]
    assert len(set(variables)) == len(variables)


def test_options_of_the_engine_are_those_of_its_configuration() -> None:
    engine = {one.name: one.metadata["setting"] for one in fields(EngineConfig)}
    ours = {one.key: one for one in SETTINGS if one.section in ("model", "engine")}
    assert ours.keys() - engine.keys() == {"path"}
    assert engine.keys() - ours.keys() == {"enable_prefix_caching", "max_new_tokens", "seed"}
    for name in ours.keys() & engine.keys():
        assert (ours[name].default, ours[name].help) == (engine[name].default, engine[name].help)


def test_every_setting_has_a_sentence_that_describes_it() -> None:
    for one in SETTINGS:
        assert one.help[0].isupper() or one.help.startswith(("int", "auto")), one.name
        assert one.help.endswith("."), one.name
        assert one.default is not None or one.unset, one.name


def test_the_manual_lists_every_key() -> None:
    """`python -m release.settings_reference` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page
    assert all(f"| `{one.name}` |" in page for one in SETTINGS)


OLD_FLAGS = {
    "--slow-reader-timeout": ("server.send_timeout", "9.0"),
    "--idle-timeout": ("server.keep_alive_timeout", "9.0"),
    "--stall-timeout": ("server.engine_step_timeout", "9.0"),
    "--max-open-requests": ("server.max_concurrent_requests", "9"),
    "--lm-head": ("model.lm_head_quantization", '"int8"'),
    "--allow-no-key": ("server.insecure_no_auth", "true"),
}


@pytest.mark.parametrize(("old", "name", "value"), [(old, *new) for old, new in OLD_FLAGS.items()])
def test_a_deprecated_flag_sets_the_setting_that_replaces_it(
    invoke: Any, caplog: pytest.LogCaptureFixture, old: str, name: str, value: str
) -> None:
    key = name.partition(".")[2]
    current = f"--{key.replace('_', '-')}"
    given = {"true": [old]}.get(value, [old, value.strip('"')])
    for words in (given, ["=".join(given)]) if len(given) > 1 else (given,):
        result = invoke("serve", *words, "--print-config")
        assert f"{key} = {value}  # flag {current}" in result.stdout.splitlines()
    assert f"{old} is deprecated; use {current}" in caplog.text
    shown = invoke("serve", "--help").stdout
    assert current in shown
    assert not re.search(rf"{old}(?![\w-])", shown)


def test_an_argument_after_two_dashes_is_not_a_deprecated_flag(invoke: Any) -> None:
    result = invoke("tokenize", "--json", "--", "--lm-head")
    assert json.loads(result.stdout)["text"] == "--lm-head"
