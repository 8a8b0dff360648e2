"""Traces: both published forms, and what is said about bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from aethermind.engine.simulation import TraceRequest, read_trace
from aethermind.errors import ConfigError

FOLDER = Path(__file__).parent
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_a_csv_trace() -> None:
    trace = read_trace(FOLDER / "small.csv")
    assert len(trace) == 8
    assert trace[0] == TraceRequest(0.0, 400, 20)
    assert trace[4].arrival_s == pytest.approx(1.5)
    assert read_trace(FOLDER / "small.csv", limit=3) == trace[:3]


def test_a_json_lines_trace() -> None:
    assert read_trace(FOLDER / "small.jsonl") == [
        TraceRequest(0.0, 1300, 9, (0, 1, 2), tenant="ada"),
        TraceRequest(0.9, 1500, 4, (0, 1, 3), priority=-1, tenant="bob"),
        TraceRequest(1.8, 600, 1, (4, 5), deadline_ms=250.0, tenant="ada"),
    ]


def test_a_csv_trace_may_have_more_columns_and_be_unsorted(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(f"\ufeff{HEADER},Priority,DeadlineMs,Tenant\r\n12.5,3,4,2,1e3,x\r\n10,5,6,,,\r\n", encoding="utf-8")
    assert read_trace(path) == [TraceRequest(0.0, 5, 6), TraceRequest(2.5, 3, 4, (), 2, 1000.0, "x")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (f"{HEADER}\n", "has no requests"),
        ("a,b,c\n1,2,3\n", "has no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        (f"{HEADER}\n1,2\n", "line 2: GeneratedTokens is None but must be a number"),
        (f"{HEADER}\n1,2,x\n", "line 2: GeneratedTokens is 'x' but must be a number"),
        (f"{HEADER}\n1,2,3\n1,-2,3\n", "line 3: ContextTokens is '-2' but must be a number of tokens"),
        (f"{HEADER}\n1,2.5,3\n", "line 2: ContextTokens is '2.5' but must be a number of tokens"),
        (f"{HEADER}\n1,nan,3\n", "line 2: ContextTokens is 'nan' but must be a finite number"),
        (f"{HEADER}\nsoon,2,3\n", "line 2: TIMESTAMP is 'soon' but must be a number"),
        (f"{HEADER},Priority\n1,2,3,high\n", "line 2: invalid literal"),
        (f"{HEADER},DeadlineMs\n1,2,3,-4\n", "line 2: deadline_ms is -4.0"),
        ('{"timestamp": 0\n', "line 1: it is not JSON"),
        ('{"timestamp": 0, "input_length": 5}\n', "line 1: output_length is missing"),
        ('{"timestamp": 0, "input_length": 5, "output_length": []}\n', r"line 1: output_length is \[\] but must be"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}\n', "line 1: hash_ids is not"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n[1]\n', "line 2: it is not a JSON object"),
    ],
)
def test_an_invalid_line_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_a_trace_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        read_trace(path)
