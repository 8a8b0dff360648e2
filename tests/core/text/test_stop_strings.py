"""Streaming stop strings against reading the whole text character by character."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aethermind.errors import InvalidArgumentError
from aethermind.text import StopChecker, StopResult

few_letters = st.text(alphabet="ab\n", max_size=24)
stop_strings = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


def reference(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """Grow the text by characters; cut at the first stop string it ends with, the longest if several."""
    for end in range(1, len(text) + 1):
        endings = [s for s in stop if text[:end].endswith(s)]
        if endings:
            matched = max(endings, key=len)
            return text[: end if include else end - len(matched)], matched
    return text, None


def stream(chunks: list[str], stop: list[str], include: bool) -> tuple[str, str | None]:
    checker = StopChecker(stop, include)
    text = ""
    for chunk in chunks:
        result = checker.push(chunk)
        text += result.text
        assert result.is_stopped == (result.matched is not None)
        if result.is_stopped:
            return text + checker.flush(), result.matched
    return text + checker.flush(), None


@given(chunks=st.lists(few_letters), stop=stop_strings, include=st.booleans())
@example(chunks=["ab", "a", "b\n"], stop=["abab\n", "bab"], include=False)
@example(chunks=["aab"], stop=["ab", "aab"], include=True)
def test_any_chunking_equals_the_whole(chunks: list[str], stop: list[str], include: bool) -> None:
    whole = reference("".join(chunks), stop, include)
    assert stream(chunks, stop, include) == whole
    assert stream(list("".join(chunks)), stop, include) == whole


@given(text=few_letters, stop=stop_strings)
def test_holds_back_only_what_may_become_a_stop(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    emitted = ""
    for i, char in enumerate(text):
        result = checker.push(char)
        if result.is_stopped:
            return
        emitted += result.text
        held = text[len(emitted) : i + 1]
        assert emitted + held == text[: i + 1]
        beginnings = {s[:n] for s in stop for n in range(1, len(s))}
        tails = [text[k : i + 1] for k in range(i + 1) if text[k : i + 1] in beginnings]
        assert held == max(tails, key=len, default="")


@given(passed=st.lists(few_letters, max_size=4), chunks=st.lists(few_letters), stop=stop_strings)
@example(passed=["bab"], chunks=["b"], stop=["ab", "baba"])
@example(passed=["bab"], chunks=["a"], stop=["ab", "baba"])
def test_what_is_complete_too_early_does_not_count_and_what_begins_there_does(
    passed: list[str], chunks: list[str], stop: list[str]
) -> None:
    checker = StopChecker(stop)
    results = [checker.push(chunk, may_stop=False) for chunk in passed]
    assert not any(result.is_stopped for result in results)
    for chunk in chunks:
        results.append(checker.push(chunk))
        if results[-1].is_stopped:
            break
    text, num_passed = "".join([*passed, *chunks]), len("".join(passed))
    matched = None
    for end in range(num_passed + 1, len(text) + 1):
        if endings := [one for one in stop if text[:end].endswith(one)]:
            matched = max(endings, key=len)
            text = text[: end - len(matched)]
            break
    assert results[-1].matched == matched if results else matched is None
    assert "".join(result.text for result in results) + checker.flush() == text


def test_no_stop_strings_pass_everything() -> None:
    assert StopChecker([]).push("a\nb") == StopResult("a\nb", False, None)


def test_after_a_stop_everything_is_dropped() -> None:
    checker = StopChecker(["\n\n"])
    assert checker.push("one\n") == StopResult("one", False, None)
    assert checker.push("\ntwo") == StopResult("", True, "\n\n")
    assert checker.push("three") == StopResult("", True, "\n\n")
    assert checker.flush() == ""


def test_a_single_string_is_one_stop_string() -> None:
    assert StopChecker("ab").push("b a ab") == StopResult("b a ", True, "ab")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="A stop string is empty"):
        StopChecker(["a", ""])
