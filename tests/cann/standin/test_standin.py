"""The stand-in would notice: calls that hardware refuses, and a host that does not wait."""

from __future__ import annotations

import pytest
import torch
import torch_npu


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
    """A host that writes to it before has changed what arrives, under some seed of the first few."""
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


def test_streams_do_not_wait_for_each_other_unasked() -> None:
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


def test_what_is_dropped_is_given_back_behind_the_work_that_uses_it() -> None:
    before = torch.npu.memory_allocated()
    result = (ones(100) + 1) * 2
    assert set(result.tolist()) == {4.0}
    del result
    torch.npu.synchronize()
    assert torch.npu.memory_allocated() == before
