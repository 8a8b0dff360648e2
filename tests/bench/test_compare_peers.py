"""The comparison's arithmetic, its table and its words; nothing here is timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.bench import compare_peers
from tests.bench.peers.columns import COLUMNS, Column
from tests.bench.peers.measure import measure
from tests.bench.peers.roster import Contestant
from tests.bench.peers.table import Sample, best_peer, cells, render
from tests.bench.peers.worker import EngineError, Worker

BY_NAME = {column.name: column for column in COLUMNS}
LIMITS = [{"memory_bytes_per_s": rate, "flops_per_s": {"bf16": 4e11}} for rate in (40e9, 50e9)]

ENGINE = """
import sys
sys.path.insert(0, {engines!r})
from serve import serve
class Engine:
    def __init__(self, arguments):
        print("a library's chatter")
        self.seen = set()
    def prefill(self, tokens, nonce):
        if nonce in self.seen:
            raise ValueError("this prompt may be cached")
        self.seen.add(nonce)
        return tokens / {speed}
    def decode(self, context, tokens):
        raise ValueError("no such context")
serve(Engine)
"""


def sample(
    engine: str, value: float, round: str = "1", column: str = "decode128", fraction: float | None = None
) -> Sample:
    return Sample(round, "q05", "bf16", engine, engine == "ours", column, value, fraction, LIMITS)


def engine(folder: Path, name: str, speed: float, is_ours: bool = False) -> Contestant:
    script = folder / f"{name}.py"
    script.write_text(ENGINE.format(engines=str(Path(compare_peers.__file__).parent / "peers/engines"), speed=speed))
    command = (sys.executable, str(script), "--model", "x", "--threads", "1")
    return Contestant(name, "bf16", command, (script,), is_ours=is_ours)


def test_ratio_is_paired_by_round_so_that_a_slow_round_cancels() -> None:
    samples = [sample("ours", 12, "1"), sample("a", 10, "1"), sample("ours", 6, "2"), sample("a", 5, "2")]
    samples += [sample("ours", 24, "3"), sample("a", 20, "3"), sample("ours", 99, "4")]
    ours, peer = cells(samples, BY_NAME["decode128"])
    assert ours.ratio == pytest.approx(1.2)
    assert (ours.best_peer, ours.rounds, ours.median) == ("a", 4, 18)
    assert peer.ratio is None
    assert peer.spread == pytest.approx(1.5)


def test_less_is_better_for_seconds_and_memory() -> None:
    samples = [sample("ours", 1.0, column="start"), sample("a", 2.0, column="start"), sample("b", 3.0, column="start")]
    assert best_peer(samples, BY_NAME["start"]) == "a"
    assert cells(samples, BY_NAME["start"])[0].ratio == pytest.approx(2.0)
    assert best_peer(samples, BY_NAME["decode128"]) == "b"


def test_without_a_peer_there_is_no_ratio() -> None:
    (only,) = cells([sample("ours", 3.0)], BY_NAME["decode128"])
    assert (only.ratio, only.best_peer) == (None, None)


def test_tokens_per_second_are_those_of_the_whole_batch() -> None:
    assert BY_NAME["batched8"].value(2.0) == 8 * BY_NAME["batched8"].job["tokens"] / 2.0
    assert BY_NAME["prefill2048"].value(4.0) == 512
    assert BY_NAME["start"].value(0.5) == 0.5


def test_table_shows_median_spread_fraction_ratio_and_bandwidth() -> None:
    samples = [sample("ours", 44.0, fraction=0.9), sample("a", 40.0)]
    assert render(samples).splitlines()[-2:] == [
        "| decode after 128, tokens/s | ours | 44.0 | 0% of 1 | 90% | **1.10 ×** a | 40 to 50 |",
        "|  | a | 40.0 | 0% of 1 |  |  |  |",
    ]


def test_every_engine_does_each_round_and_what_fails_is_said(tmp_path: Path) -> None:
    contestants = [engine(tmp_path, "ours", 200, is_ours=True), engine(tmp_path, "slow", 100)]
    said: list[str] = []
    columns: list[Column] = [BY_NAME["prefill512"], BY_NAME["prefill2048"], BY_NAME["decode128"]]
    samples = list(measure("q05", contestants, columns, 3, lambda: LIMITS[0], said.append))
    assert [one.engine for one in samples] == 2 * ["ours", "slow", "slow", "ours", "ours", "slow"]
    assert len({one.round for one in samples}) == 6
    first = [one for one in samples if one.column == "prefill512"]
    assert cells(first, BY_NAME["prefill512"])[0].ratio == pytest.approx(2.0)
    assert said == [
        f"{name}: no {BY_NAME['decode128'].title} (ValueError: no such context)" for name in ("ours", "slow")
    ]


def test_an_engine_that_does_not_start_gives_its_last_word(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no model here')")
    broken = Contestant("broken", "bf16", (sys.executable, str(script)), (script,))
    with pytest.raises(EngineError, match="no model here"):
        Worker(broken, 16, 1)


def test_nobody_to_compare_with_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    arguments = ["--peers", str(tmp_path), "--models", f"q05={tmp_path}", "--precisions", "int8"]
    assert compare_peers.main(arguments) == 2
    words = capsys.readouterr().err
    assert "llama.cpp Q8_0 is not installed" in words
    assert f"No peer is installed for q05 under {tmp_path}" in words


def test_samples_of_a_file_are_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "samples.json"
    compare_peers._write(path, [sample("ours", 44.0), sample("a", 40.0)])
    assert len(json.loads(path.read_text())["samples"]) == 2
    assert compare_peers.main(["--json", str(path)]) == 0
    assert "**1.10 ×** a" in capsys.readouterr().out
