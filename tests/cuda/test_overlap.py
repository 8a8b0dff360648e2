"""Every kernel waits for the one before it, since in a graph it may be launched while that one runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind_cuda.launch import DeviceFacts, Launch
from aethermind_cuda.library import KernelLibrary

CSRC = ROOT / "aethermind-cuda" / "csrc"
WAITS_INSIDE = {"gate_up_silu.cu": "common/project_gemv.cuh", "linear.cu": "common/project_gemv.cuh"}
"""Sources that have something to do before they wait, and the header that waits for them."""

BEGINNING = re.compile(r"__global__[^{]*\{[\s\\]*(.*?);", re.DOTALL)


@pytest.mark.parametrize("source", sorted(CSRC.glob("*.cu")), ids=lambda path: path.stem)
def test_every_kernel_begins_by_waiting(source: Path) -> None:
    beginnings = BEGINNING.findall(source.read_text())
    assert beginnings, "a source without a kernel"
    others = {beginning for beginning in beginnings if beginning != "aether::begin_kernel()"}
    if source.name in WAITS_INSIDE:
        header = Path(WAITS_INSIDE[source.name])
        assert all(header.stem in beginning for beginning in others)
        assert "wait_for_kernel_before()" in (CSRC / header).read_text()
    else:
        assert not others


@pytest.mark.parametrize(
    ("capability", "waits", "overlaps"), [((8, 9), True, False), ((9, 0), True, True), ((12, 0), False, False)]
)
def test_launches_overlap_where_hardware_and_kernel_can(
    tmp_path: Path, capability: tuple[int, int], waits: bool, overlaps: bool
) -> None:
    driver = HostDriver()
    driver.set_context(driver.retain_context(0))
    targets = f"{capability[0]}{capability[1]}"
    library = KernelLibrary(
        driver, DeviceFacts(capability, 1, 1 << 16), fake_cubins(tmp_path, ["rms_norm"], (targets,))
    )
    stream = driver.stream_create(0)
    launch = Launch("rms_norm", "rms_norm_float32", (1, 1, 1), (32, 1, 1), (1,), overlaps=waits)
    library.bind_launch(launch)(stream)
    assert [launched.overlaps for launched in driver.launches] == [overlaps]
