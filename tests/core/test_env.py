"""Environment variables: what they mean when set, unset, empty and wrong."""

from __future__ import annotations

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


@pytest.mark.parametrize(("value", "level"), [(None, "WARNING"), ("debug", "DEBUG"), ("Error", "ERROR")])
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


def set_or_unset(monkeypatch: pytest.MonkeyPatch, name: str, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, value)
