"""A file holds one idea, in a size that is read at one sitting: neither crumbs nor files without end."""

from __future__ import annotations

from statistics import median

from tests.architecture.sources import ROOT, source_files

from aethermind import Runtime

MAX_LINES = 600
MAX_FAMILY_LINES = 200
"""A family of models is about a page: a newcomer reads it before writing one like it."""
MAX_CORE_FILES = 420
MIN_CORE_MEDIAN_LINES = 90
SUFFIXES = {".py", ".h", ".cc", ".cu", ".cuh", ".ts", ".tsx", ".css"}


def test_no_file_is_too_long() -> None:
    files = source_files(*SUFFIXES)
    assert len(files) > 100, "the sources were not found"
    assert {path.suffix for path in files} == SUFFIXES
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    too_long = {path: size for path, size in sizes.items() if size > MAX_LINES}
    assert too_long == {}


def test_a_module_of_a_family_is_about_a_page() -> None:
    packages = {record.distribution for record in Runtime.boot().plugins if record.registered.get("architectures")}
    files = [path for name in packages for path in (ROOT / str(name)).glob("src/*/*.py")]
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(sizes) > 50, "the packages of models were not found"
    assert {path: size for path, size in sizes.items() if size > MAX_FAMILY_LINES} == {}


def test_the_core_is_not_split_into_crumbs() -> None:
    core = ROOT / "aethermind-core/src/aethermind"
    files = [path for path in core.rglob("*.py") if "templates" not in path.parts]
    sizes = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    assert len(files) <= MAX_CORE_FILES
    assert median(sizes) >= MIN_CORE_MEDIAN_LINES
