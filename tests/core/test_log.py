"""Logging: everything below one logger, handlers on request only."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aethermind import log
from aethermind.log import get_logger, set_format, setup_console, write_in_background


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The logger of everything, put back as it was."""
    root = logging.getLogger("aethermind")
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    libraries = [logging.getLogger(name) for name in ("uvicorn", "asyncio")]
    kept = [(library.handlers[:], library.propagate) for library in libraries]
    yield root
    for library, (own, propagate) in zip(libraries, kept, strict=True):
        library.handlers[:], library.propagate = own, propagate
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("name", "logger"),
    [
        ("aethermind", "aethermind"),
        ("aethermind.engine.loading.loader", "aethermind.engine.loading.loader"),
        ("aethermind_cpu.plugin", "aethermind.aethermind_cpu.plugin"),
        ("somewhere", "aethermind.somewhere"),
    ],
)
def test_every_logger_is_below_ours(name: str, logger: str) -> None:
    assert get_logger(name).name == logger


@pytest.mark.parametrize(
    ("value", "level"),
    [("debug", logging.DEBUG), ("ERROR", logging.ERROR), ("loud", logging.WARNING), ("basic_format", logging.WARNING)],
)
def test_the_console_shows_what_the_level_asks_for(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, value: str, level: int
) -> None:
    monkeypatch.setenv("AETHERMIND_LOG", value)
    setup_console()
    assert root.level == level


@pytest.mark.usefixtures("root")
def test_the_console_is_set_up_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AETHERMIND_LOG", "info")
    setup_console()
    setup_console()
    get_logger("aethermind_cpu").info("hello")
    get_logger("x").debug("not this")
    assert capsys.readouterr().err == "I aethermind.aethermind_cpu: hello\n"


@pytest.mark.usefixtures("root")
def test_fields_follow_the_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AETHERMIND_LOG", "info")
    setup_console()
    fields = {"n": 3, "path": "/a b", "forged": 'x\ny="1"', "none": ""}
    get_logger("x").info("done", extra={"fields": fields})
    assert capsys.readouterr().err == "I aethermind.x: done n=3 path='/a b' forged='x\\ny=\"1\"' none=''\n"


@pytest.mark.usefixtures("root")
def test_text_of_what_serves_has_the_time_and_says_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AETHERMIND_LOG", "info")
    setup_console()
    set_format("text")
    extra = {"fields": {"path": "/a", "n": 3}, "in_message": ("path",)}
    get_logger("x").info("GET /a", extra=extra)
    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} I aethermind\.x: GET /a n=3\n"
    assert re.fullmatch(line, capsys.readouterr().err)
    set_format("json")
    get_logger("x").info("GET /a", extra=extra)
    assert json.loads(capsys.readouterr().err).items() >= {"path": "/a", "n": 3}.items()


@pytest.mark.usefixtures("root")
def test_json_is_an_object_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AETHERMIND_LOG", "info")
    setup_console()
    set_format("json")
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)  # a server in this process may have set another one
    get_logger("x").info("one\ntwo", extra={"fields": {"n": 3, "tokens": [1, 2]}})
    logging.getLogger("uvicorn.error").warning("from a library")
    try:
        raise ValueError("no luck")
    except ValueError:
        get_logger("x").exception("failed")
    first, library, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "info", "logger": "aethermind.x", "message": "one\ntwo", "n": 3, "tokens": [1, 2]}
    assert (library["logger"], library["level"]) == ("uvicorn.error", "warning")
    assert "ValueError: no luck" in failed["exception"]


def test_importing_installs_no_handler() -> None:
    code = "import logging, aethermind.log, aethermind.llm; print(logging.getLogger('aethermind').handlers)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(("room", "num_lines"), [(10_000, 4_000), (50, 4_000)], ids=["all", "too_many"])
def test_nobody_waits_for_who_reads_the_log(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch, room: int, num_lines: int
) -> None:
    monkeypatch.setattr(log, "_MAX_QUEUED", room)
    monkeypatch.setattr(log, "_FLUSH_TIMEOUT_S", 0.01)
    reading, writing = (os.fdopen(file, mode) for file, mode in zip(os.pipe(), "rw", strict=True))
    handler = logging.StreamHandler(writing)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root.addHandler(handler)
    write_in_background()
    root.setLevel(logging.INFO)
    for number in range(num_lines):
        root.info("%d %s", number, "x" * 100)
    root.handlers[0].flush()  # which waits for a while and no longer
    lines = iter(reading)
    seen = num_dropped = 0
    while seen < num_lines:
        number, words = next(lines).split(" ", 1)
        if "dropped" in words:
            num_dropped += int(number)
            seen += int(number)
        else:
            assert int(number) == seen
            seen += 1
    assert (num_dropped > 0) == (room < num_lines)
