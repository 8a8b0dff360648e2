"""A file is a room: nothing is longer than 400 lines."""

from __future__ import annotations

from tests.architecture.sources import ROOT, source_files

MAX_LINES = 400
SUFFIXES = {".py", ".h", ".cc", ".cu", ".cuh", ".ts", ".tsx", ".css"}


def test_no_file_is_too_long() -> None:
    files = source_files(*SUFFIXES)
    assert len(files) > 100, "the sources were not found"
    assert {path.suffix for path in files} == SUFFIXES
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    too_long = {path: size for path, size in sizes.items() if size > MAX_LINES}
    assert too_long == {}
