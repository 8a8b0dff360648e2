"""Device names."""

from __future__ import annotations

import pytest

from aethermind.errors import InvalidArgumentError
from aethermind.hal import DeviceId, Probe


@pytest.mark.parametrize(
    ("text", "device"),
    [("cpu", DeviceId("cpu", 0)), ("cuda:0", DeviceId("cuda", 0)), ("my-chip:12", DeviceId("my-chip", 12))],
)
def test_parse(text: str, device: DeviceId) -> None:
    assert DeviceId.parse(text) == device
    assert DeviceId.parse(str(device)) == device


@pytest.mark.parametrize("text", ["", ":1", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda: 1"])
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^Device .* is not of the form NAME or NAME:INDEX, such as"):
        DeviceId.parse(text)


def test_a_probe_that_counts_none_is_unavailable() -> None:
    assert Probe(2, "two are there.").is_available
    assert not Probe(0, "none is there.").is_available
