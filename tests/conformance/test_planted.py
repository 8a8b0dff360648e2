"""Some of the planted bugs; `make planted-bugs` tries all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import which

import pytest
from tests.conformance.planted.bugs import BUGS
from tests.conformance.planted.run import SUBJECTS, conform, installed, try_bug

SUBJECT = Path(__file__).parent / "planted" / "subject"
SOME = ("wait-ignored", "add: returns", "paged_attention: keys beyond 256", "native argmax: no barrier")


@pytest.fixture(scope="module")
def environment() -> Iterator[Mapping[str, str]]:
    pytest.importorskip("torch", reason="the subject computes by torch")
    if which("c++") is None:
        pytest.skip("native kernels need a compiler")
    with installed() as made:
        yield made


def test_there_are_enough_and_each_has_its_place() -> None:
    assert len(BUGS) >= 300
    assert [name for name, count in Counter(bug.name for bug in BUGS).items() if count > 1] == []
    sources = {path.name: path.read_text(encoding="utf-8") for path in SUBJECT.iterdir() if path.is_file()}
    for bug in BUGS:
        planted = bug.planted_in(sources[bug.file])
        assert planted != sources[bug.file]
        if bug.file.endswith(".py"):
            compile(planted, bug.file, "exec")


@pytest.mark.parametrize("arguments", [("planted", "--suite", "hal"), SUBJECTS["planted-native"]], ids=" ".join)
def test_a_subject_without_a_bug_conforms(arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
    status, said = conform(arguments, environment)
    assert status == 0, said


def test_kernels_without_a_bug_conform(environment: Mapping[str, str]) -> None:
    status, said = conform(("planted", "--suite", "operators", "-k", "[paged_attention-torch or [add-"), environment)
    assert status == 0, said


@pytest.mark.parametrize("name", SOME)
def test_some_are_found(name: str, environment: Mapping[str, str]) -> None:
    (bug,) = [one for one in BUGS if one.name == name]
    finding = try_bug(bug, environment)
    assert finding.is_found, finding.said
