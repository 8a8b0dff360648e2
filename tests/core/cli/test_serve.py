"""Which models `serve` serves, and what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aethermind.cli.groups import as_arguments
from aethermind.cli.serve import named_models
from aethermind.cli.server_options import AccessOptions, ServedEngineOptions
from aethermind.errors import InvalidArgumentError
from aethermind.server import Quota


@pytest.mark.parametrize(
    ("given", "served_name", "models"),
    [
        (None, None, {"demo": "demo"}),
        (["./a"], None, {"./a": "./a"}),
        (["./a"], "storyteller", {"storyteller": "./a"}),
        (["x=./a"], "storyteller", {"storyteller": "./a"}),
        (["x=./a", "y=./a=b", "demo"], None, {"x": "./a", "y": "./a=b", "demo": "demo"}),
        (["=a"], None, {"=a": "=a"}),
    ],
)
def test_names(given: list[str] | None, served_name: str | None, models: dict[str, str]) -> None:
    assert named_models(given, served_name) == models


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path) -> None:
    path = str(tmp_path / "a=b")
    Path(path).mkdir()
    assert named_models([path], None) == {path: path}


@pytest.mark.parametrize(
    ("given", "served_name", "words"),
    [
        (["a"], " ", "is empty"),
        (["x=a", "x=b"], None, "same name"),
        (["demo", "demo"], None, "same name"),
        (["a", "b"], "c", "names one model"),
    ],
)
def test_what_has_no_name_of_its_own(given: list[str], served_name: str | None, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        named_models(given, served_name)


def test_a_file_may_list_models_which_other_verbs_do_not_take(invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[model]\npath = ["x=demo", "y=demo"]\n')
    shown = invoke("serve", "--config", str(file), "--print-config")
    assert 'path = ["x=demo", "y=demo"]' in shown.stdout
    refused = invoke("generate", "Once", "--config", str(file))
    assert refused.exit_code == 2
    assert "takes one of the models x=demo, y=demo" in refused.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--request-timeout", "0"), "--request-timeout is 0.0 but must be a number of seconds above 0."),
        (("--drain-timeout", "nan"), "--drain-timeout is nan but must be a number of seconds above 0."),
    ],
)
def test_no_time_at_all(invoke: Any, args: tuple[str, ...], words: str) -> None:
    refused = invoke("serve", *args)
    assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr


def test_who_needs_a_key() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert not AccessOptions(host=host).tenants(Quota())
    for host in ("0.0.0.0", "::", "example.org", "192.0.2.1", "", "[::1]", "LOCALHOST", "localhost.example.org"):
        with pytest.raises(InvalidArgumentError, match="--allow-no-key"):
            AccessOptions(host=host).tenants(Quota())


def test_an_engine_that_is_none(invoke: Any) -> None:
    refused = invoke("serve", "--engine", "thread")
    assert refused.exit_code == 2
    assert "process, inprocess" in refused.stderr


def test_a_tokenizer_is_that_of_one_model(invoke: Any) -> None:
    result = invoke("serve", "--model", "a=demo", "--model", "b=demo", "--tokenizer", "demo")
    assert result.exit_code == 2
    assert "--tokenizer is that of one model, and several are given" in result.stderr


def test_a_chat_template_is_for_one_model_and_there_before_it_is_loaded(invoke: Any) -> None:
    for args, words in (
        (("--chat-template", "./nowhere.jinja"), "'./nowhere.jinja' cannot be read: No such file or directory."),
        (("--model", "a=demo", "--model", "b=demo", "--chat-template", "x"), "--chat-template is for one model"),
    ):
        refused = invoke("serve", *args)
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr


def test_a_server_may_be_deterministic(invoke: Any) -> None:
    assert "deterministic = true  # flag --deterministic" in invoke("serve", "--deterministic", "--print-config").stdout
    assert as_arguments(ServedEngineOptions(deterministic=True))["deterministic"] is True
