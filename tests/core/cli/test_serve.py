"""serve: names of models, access, and errors of options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aethermind.cli.serve import tenants_of
from aethermind.cli.served_models import named_models
from aethermind.cli.settings import AccessOptions, ServedEngineOptions, as_arguments
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
def test_models_without_a_unique_name_are_refused(given: list[str], served_name: str | None, words: str) -> None:
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
        (("--request-timeout", "0"), "--request-timeout should be a number of seconds above 0, got 0.0."),
        (("--drain-timeout", "nan"), "--drain-timeout should be a number of seconds above 0, got nan."),
    ],
)
def test_timeouts_must_be_positive_numbers(invoke: Any, args: tuple[str, ...], words: str) -> None:
    refused = invoke("serve", *args)
    assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr


def test_addresses_beyond_loopback_need_an_api_key() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert not tenants_of(AccessOptions(host=host), Quota())
    for host in ("0.0.0.0", "::", "example.org", "192.0.2.1", "", "[::1]", "LOCALHOST", "localhost.example.org"):
        with pytest.raises(InvalidArgumentError, match="--insecure-no-auth"):
            tenants_of(AccessOptions(host=host), Quota())


def test_an_unknown_engine_location_is_refused(invoke: Any) -> None:
    refused = invoke("serve", "--engine", "thread")
    assert refused.exit_code == 2
    assert "process, inprocess" in refused.stderr


def test_a_tokenizer_is_refused_with_several_models(invoke: Any) -> None:
    result = invoke("serve", "--model", "a=demo", "--model", "b=demo", "--tokenizer", "demo")
    assert result.exit_code == 2
    assert "--tokenizer is for one model, but several are given" in result.stderr


def test_a_chat_template_is_read_before_loading_and_refused_with_several_models(invoke: Any) -> None:
    for args, words in (
        (("--chat-template", "./nowhere.jinja"), "'./nowhere.jinja' cannot be read: No such file or directory."),
        (("--model", "a=demo", "--model", "b=demo", "--chat-template", "x"), "--chat-template is for one model"),
    ):
        refused = invoke("serve", *args)
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr


def test_a_server_may_be_deterministic(invoke: Any) -> None:
    assert "deterministic = true  # flag --deterministic" in invoke("serve", "--deterministic", "--print-config").stdout
    assert as_arguments(ServedEngineOptions(deterministic=True))["deterministic"] is True


@pytest.mark.parametrize("engine", ["inprocess", "process"])
@pytest.mark.parametrize(
    ("given", "words"),
    [("/proc/1/attr", "session_dir /proc/1/attr cannot be written to: "), ("", "should be the path of a directory")],
)
def test_a_session_dir_that_cannot_be_used_is_refused(invoke: Any, engine: str, given: str, words: str) -> None:
    refused = invoke("serve", "--engine", engine, "--device", "cpu", "--port", "0", "--session-dir", given)
    assert refused.exit_code == 2
    assert words in refused.stderr
