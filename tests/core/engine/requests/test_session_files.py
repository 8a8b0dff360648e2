"""Files of saved sessions: whole after a failed save, of one model each, and errors that say what failed."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from aethermind.engine.requests.session_files import SavedSession, SessionFiles, list_session_files
from aethermind.errors import CacheContentError, InvalidArgumentError

TOKENS = [1, 2, 3]


def open_files(folder: Path, model: str = "a/model") -> SessionFiles:
    return SessionFiles(folder, model, (model, "float32"), lambda: cast(Any, None))


def lone_file(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """The system lets this process write no larger files, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_save_leaves_the_saved_session(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.save("tale", TOKENS, b"first\n\x00")
    with files_of_at_most(1000), pytest.raises(InvalidArgumentError, match=r"cannot be saved: File too large\."):
        files.save("tale", [*TOKENS, 4], bytes(2000))
    assert files.read("tale") == (TOKENS, b"first\n\x00")
    assert lone_file(tmp_path).suffix == ".session", "nothing else is left"
    files.save("tale", [*TOKENS, 4], b"second")
    assert files.read("tale") == ([*TOKENS, 4], b"second")


def test_sessions_of_two_models_with_one_name_are_separate(tmp_path: Path) -> None:
    one, two = open_files(tmp_path, "one"), open_files(tmp_path, "two")
    one.save("tale", TOKENS, b"of one")
    assert (two.has("tale"), two.read("tale"), two.lengths()) == (False, None, {})
    two.save("tale", [7], b"of two")
    assert list_session_files(tmp_path) == [SavedSession("tale", 0, "two"), SavedSession("tale", 2, "one")]
    two.delete("tale")
    assert one.read("tale") == (TOKENS, b"of one")


def test_a_damaged_file_is_told_from_one_that_cannot_be_read_or_deleted(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.save("tale", TOKENS, b"")
    path = lone_file(tmp_path)
    path.write_bytes(b"{")
    with pytest.raises(CacheContentError, match=r"is damaged .* Delete the session\."):
        files.read("tale")
    assert files.length("tale") == 0, "it exists, so that it can be deleted"
    files.delete("tale")
    assert files.length("tale") is None
    files.delete("tale")
    path.mkdir()  # which no user, root neither, reads or unlinks as a file
    with pytest.raises(InvalidArgumentError, match="The file of the session cannot be read: Is a directory"):
        files.read("tale")
    with pytest.raises(InvalidArgumentError, match="The file of the session cannot be deleted: "):
        files.delete("tale")


def test_a_directory_that_cannot_be_written_to_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        InvalidArgumentError, match=r"session_dir .*file cannot be written to: Not a directory\. Name a"
    ):
        open_files(tmp_path / "file")
    open_files(tmp_path)  # its folder exists now
    monkeypatch.setattr("aethermind.engine.requests.session_files.TemporaryFile", _read_only)
    with pytest.raises(InvalidArgumentError, match=r"cannot be written to: Read-only file system\."):
        open_files(tmp_path)


def _read_only(*_: object, **__: object) -> int:
    raise OSError(30, "Read-only file system")
