"""The stand-in detects calls that hardware refuses, and missing synchronisation."""

from __future__ import annotations

import inspect
from functools import reduce
from pathlib import Path

import pytest
import torch
import torch_npu

LINES = Path(__file__).parents[1].joinpath("signatures.txt").read_text(encoding="utf-8").splitlines()
FUNCTIONS = [line.removeprefix("py npu.") for line in LINES if line.startswith("py npu.")]


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="npu")


def test_an_operator_that_the_wheel_does_not_have_is_refused() -> None:
    x = ones(2)
    with pytest.raises(NotImplementedError, match="npu"):
        torch.special.airy_ai(x)


def test_dtypes_that_the_documentation_rules_out_are_refused() -> None:
    with pytest.raises(RuntimeError, match="documentation rules this out"):
        torch_npu.npu_rms_norm(ones(2, 4), ones(4, dtype=torch.bfloat16))


def test_a_parameter_that_the_schema_does_not_have_is_refused() -> None:
    with pytest.raises(RuntimeError, match="eps"):
        torch_npu.npu_rms_norm(ones(2, 4), ones(4), eps=1e-6)


def test_pinned_memory_is_read_when_the_copy_runs() -> None:
    """Writing to pinned memory before the copy has run changes the result under one of the first seeds."""
    arrived = set()
    for _ in range(32):
        source = torch.empty(8, dtype=torch.uint8, pin_memory=True)
        source.fill_(1)
        target = torch.empty(8, dtype=torch.uint8, device="npu")
        target.copy_(source, non_blocking=True)
        source.fill_(2)
        torch.npu.synchronize()
        arrived |= set(target.tolist())
    assert 2 in arrived


def test_streams_are_unordered_without_events() -> None:
    seen = set()
    for _ in range(32):
        value = torch.zeros(4, device="npu")
        torch.npu.synchronize()
        other = torch.npu.Stream()
        value.fill_(5)
        with torch.npu.stream(other):
            copied = value + 0
        other.synchronize()
        torch.npu.synchronize()
        seen |= set(copied.tolist())
    assert seen == {0.0, 5.0}


def test_dropped_memory_is_freed_after_the_work_that_uses_it() -> None:
    before = torch.npu.memory_allocated()
    result = (ones(100) + 1) * 2
    assert set(result.tolist()) == {4.0}
    del result
    torch.npu.synchronize()
    assert torch.npu.memory_allocated() == before


@pytest.mark.parametrize("line", FUNCTIONS)
def test_its_functions_have_the_wheels_parameters(line: str) -> None:
    name, _, parameters = line.partition("(")
    found = reduce(getattr, name.split("."), torch_npu.npu)
    given = inspect.signature(found).parameters.values()
    ours = [one for one in given if one.name != "self"]
    space: dict[str, object] = {}
    exec(f"def f({parameters}: ...", space)
    theirs = inspect.signature(space["f"]).parameters.values()  # type: ignore[arg-type]
    assert [(one.name, one.kind, one.default) for one in ours] == [(one.name, one.kind, one.default) for one in theirs]


# Graphs


def captured(work: object, **options: object) -> torch_npu.npu.NPUGraph:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        work()  # type: ignore[operator]
    return graph


def test_captured_work_runs_at_replay_only() -> None:
    x = ones(3)
    graph = captured(lambda: x.add_(1))
    assert x.tolist() == [1, 1, 1]
    for _ in range(2):
        graph.replay()
    x.mul_(10)
    graph.replay()
    assert x.tolist() == [31, 31, 31]


def captured_doubling(x: torch.Tensor) -> tuple[torch_npu.npu.NPUGraph, torch.Tensor]:
    made: list[torch.Tensor] = []
    return captured(lambda: made.append((x + 1) * 2)), made[0]


def test_memory_allocated_during_capture_lives_as_long_as_the_graph() -> None:
    before = torch.npu.memory_allocated()
    x = ones(100)
    graph, doubled = captured_doubling(x)
    for value in (1, 2):
        x.fill_(value)
        graph.replay()
        assert set(doubled.tolist()) == {2.0 * (value + 1)}
    del graph, doubled, x
    torch.npu.synchronize()
    assert torch.npu.memory_allocated() == before


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.copy_(torch.ones(2)),
        lambda _: torch.npu.synchronize(),
        lambda _: torch.npu.current_stream().synchronize(),
    ],
)
def test_waiting_during_a_capture_is_an_error(work: object) -> None:
    x = ones(2)
    with pytest.raises(RuntimeError, match="107027"):
        captured(lambda: work(x))  # type: ignore[operator]
    assert x.tolist() == [1, 1]


def test_a_default_stream_cannot_be_captured() -> None:
    with pytest.raises(RuntimeError, match="default stream"):
        captured(lambda: None, stream=torch.npu.default_stream())


class CapturedAttention:
    """Attention of one query over equal keys and values 1, 2, 3, …: the mean of the visible values."""

    def __init__(self) -> None:
        self.out = torch.empty(1, 2, 16, dtype=torch.float16, device="npu")
        self._query, self._keys = ones(1, 2, 16, dtype=torch.float16), ones(1, 1, 128, 16, dtype=torch.float16)
        self._values = torch.arange(1, 129, dtype=torch.float16)[:, None].repeat(1, 16)[None, None].npu()
        self._mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1).npu()
        self._table = torch.zeros(1, 1, dtype=torch.int32).npu()
        self.graph = captured(self._attend, auto_dispatch_capture=True)

    def _attend(self) -> None:
        options = {"num_heads": 2, "num_key_value_heads": 1, "input_layout": "TND", "block_size": 128}
        lengths = {"actual_seq_lengths": [1], "actual_seq_lengths_kv": [2]}
        given = {"atten_mask": self._mask, "block_table": self._table, "sparse_mode": 3, "scale": 0.5}
        found, _ = torch_npu.npu_fused_infer_attention_score(
            self._query, self._keys, self._values, **given, **lengths, **options
        )
        self.out.copy_(found)


def test_lengths_are_those_of_the_last_update() -> None:
    attention = CapturedAttention()
    for length in (3, 5, 128):
        attention.graph.update([{"actual_seq_lengths_kv": [length]}])
        attention.graph.replay()
        assert attention.out[0, 0, 0].item() == pytest.approx((length + 1) / 2, rel=1e-2)


def test_a_replay_without_an_update_never_ends() -> None:
    attention = CapturedAttention()
    attention.graph.replay()
    with pytest.raises(RuntimeError, match="waits for an update"):
        torch.npu.synchronize()
