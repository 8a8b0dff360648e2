"""Output files are checked before the work begins."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from aethermind.cli.output_files import check_writable
from aethermind.errors import InvalidArgumentError

TRACE = str(Path(__file__).parents[1] / "engine" / "simulation" / "small.csv")


def test_the_check_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    for name in ("old", "new", "pipe"):
        check_writable(tmp_path / name, "File")
    assert {path.name for path in tmp_path.iterdir()} == {"old", "pipe"}
    assert (tmp_path / "old").read_text() == "text"


@pytest.mark.parametrize("name", ["nowhere/x", ".", "x" * 300])
def test_the_error_names_a_file_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^Plot .* cannot be written: .*\. Pass another one\.$"):
        check_writable(tmp_path / name, "Plot")


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", TRACE, "--plot", "{}.svg"),
        ("bench", "serve", "--url", "http://127.0.0.1:1", "--plot", "{}.svg"),
        ("conform", "numpy", "--suite", "hal", "--badge", "{}.svg"),
        ("profile", "--trace", "{}.json"),
    ],
)
def test_commands_check_output_files_before_they_start(invoke: Any, tmp_path: Path, words: tuple[str, ...]) -> None:
    result = invoke(*(word.format(tmp_path / "nowhere" / "run") for word in words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be written: No such file or directory. Pass another one." in result.stderr


def test_a_full_disk_is_an_error_about_the_file_and_leaves_no_partial_package(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def write(path: Path, *_: Any, **__: Any) -> None:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.touch()
        written.append(path)

    monkeypatch.setattr(Path, "write_text", write)
    result = invoke("plugin", "new", "policy", "my-own-policy", "--directory", str(tmp_path))
    assert (result.exit_code, result.stdout, len(written)) == (2, "", 1)
    assert f"Folder {tmp_path}/aethermind-my-own-policy cannot be written: No space left" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_device_is_not_reported_as_standard_output(invoke: Any) -> None:
    result = invoke("conform", "numpy", "--suite", "hal", "-k", "alone", "--badge", "/dev/full")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Badge /dev/full cannot be written: No space left on device" in result.stderr
