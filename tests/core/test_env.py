"""Environment variables: what they mean when set, unset, empty and wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aethermind import env
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("value", "allowed"),
    [(None, None), ("", frozenset()), ("cpu", frozenset({"cpu"})), (" cpu , qwen2,", frozenset({"cpu", "qwen2"}))],
)
def test_plugin_allow_list(monkeypatch: pytest.MonkeyPatch, value: str | None, allowed: frozenset[str] | None) -> None:
    set_or_unset(monkeypatch, "AETHERMIND_PLUGINS", value)
    assert env.plugin_allow_list() == allowed


@pytest.mark.parametrize(
    ("value", "level"), [(None, "WARNING"), ("", "WARNING"), ("debug", "DEBUG"), ("Error", "ERROR")]
)
def test_log_level(monkeypatch: pytest.MonkeyPatch, value: str | None, level: str) -> None:
    set_or_unset(monkeypatch, "AETHERMIND_LOG", value)
    assert env.log_level() == level


@pytest.mark.parametrize(("value", "number"), [(None, None), ("", None), ("1", 1), ("12", 12)])
def test_num_threads(monkeypatch: pytest.MonkeyPatch, value: str | None, number: int | None) -> None:
    set_or_unset(monkeypatch, "AETHERMIND_NUM_THREADS", value)
    assert env.num_threads() == number


@pytest.mark.parametrize("value", ["0", "-2", "many", "1.5", " "])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AETHERMIND_NUM_THREADS", value)
    with pytest.raises(
        InvalidArgumentError, match=f"^AETHERMIND_NUM_THREADS is '{value}'; set it to a positive number"
    ):
        env.num_threads()


@pytest.mark.parametrize(("value", "path"), [(None, None), ("", None), ("/models/a", "/models/a")])
def test_model_path(monkeypatch: pytest.MonkeyPatch, value: str | None, path: str | None) -> None:
    set_or_unset(monkeypatch, "AETHERMIND_MODEL", value)
    assert env.model_path() == path


def test_the_cache_is_below_an_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for value, path in {"/var/cache": "/var/cache", "": "/home/me/.cache", "near": "/home/me/.cache"}.items():
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert env.cache_directory() == Path(path, "aethermind")
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert env.state_directory() == Path(path.replace(".cache", ".local/state"), "aethermind")


def test_who_has_no_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "near")  # `~` stays what it is for users without an entry: as relative as this
    with pytest.raises(OSError, match=re.escape(str(env.cache_directory()))):
        env.cache_directory().mkdir(parents=True)


def test_a_home_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert env.expand_home("~/model") == Path("/home/somebody/model")
    with pytest.raises(InvalidArgumentError, match=r"^~nobody-has-this-name/m begins with the home of an unknown user"):
        env.expand_home("~nobody-has-this-name/m")


def set_or_unset(monkeypatch: pytest.MonkeyPatch, name: str, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, value)
