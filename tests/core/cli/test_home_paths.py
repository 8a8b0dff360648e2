"""Every option that takes a path expands `~`, which a shell does only at the beginning of a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from aethermind import LLM, Runtime
from aethermind.cli.app import app
from aethermind.cli.commands import LazyCommands
from aethermind.cli.generate import read_structured_outputs
from aethermind.cli.serve import tenants_of
from aethermind.cli.settings import AccessOptions
from aethermind.config.file import find_file
from aethermind.server import Quota
from aethermind.text.chat_templates import ChosenTemplate


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def parameters(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The parameters of a command and of the commands below it."""
    for parameter in command.params:
        yield f"{name} {parameter.name}", parameter
    for below, one in getattr(command, "commands", {}).items():
        yield from parameters(one, f"{name} {below}")


def test_options_of_commands(home: Path) -> None:
    of_commands = dict(each for name, command in LazyCommands().items() for each in parameters(command, name))
    paths = {name: each for name, each in of_commands.items() if each.type.name in ("path", "file", "directory")}
    assert {"generate prompt_file", "sessions list directory", "plugin new directory", "simulate trace"} <= {*paths}
    for name, each in paths.items():
        assert Path(each.type.convert("~/a", each, None)) == home / "a", name


def test_settings(home: Path, runtime: Runtime) -> None:
    (home / "template.jinja").write_text("{{ messages }}")
    (home / "keys.toml").write_text('[[keys]]\nkey = "secret-key"\n')
    (home / "settings.toml").write_text("")
    (home / "schema.json").write_text('{"type": "integer"}')
    assert ChosenTemplate.read("~/template.jinja").source == "{{ messages }}"
    assert tenants_of(AccessOptions(api_keys_file="~/keys.toml"), Quota())
    assert find_file("~/settings.toml") == home / "settings.toml"
    schema = read_structured_outputs("~/schema.json", None, None, None)
    assert schema is not None
    assert schema.json == '{"type": "integer"}'
    options: dict[str, Any] = {"session_dir": "~/sessions", "kv_store": "disk:~/store", "max_model_len": 32}
    with LLM("demo", device="cpu", runtime=runtime, **options):
        pass
    assert (home / "sessions").is_dir()
    assert (home / "store").is_dir()


def test_an_unknown_home_is_an_error_of_one_sentence() -> None:
    result = typer.testing.CliRunner().invoke(app, ["tokenize", "--file", "~nobody-has-this-name/text"])
    assert result.exit_code == 2
    assert "begins with the home of an unknown user" in " ".join(result.stderr.split())
